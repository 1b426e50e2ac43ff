import { checkFunction, checkSignal, ttlMsFrom } from '../../core/arguments.ts'
import { StoreError } from '../../core/errors.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import type { Clock } from '../../core/time/clock.ts'
import { pause } from '../../core/time/pause.ts'

export interface ObserveOptions {
  /**
   * How often to look. At least 0.05.
   *
   * @default 1
   */
  everySeconds?: number
  /** Ends the loop. */
  signal?: AbortSignal
  /** Called when the store did not answer. The loop goes on. */
  onError?: (error: StoreError) => void
}

const OPTIONS = optionNames<ObserveOptions>({ everySeconds: true, signal: true, onError: true })

interface Observed {
  readonly term: number
}

interface ObserveParts<Leader extends Observed> {
  readonly clock: Clock
  readonly ended: AbortSignal
  /** Aborts when there is a reason to look at once. A new signal each time. */
  changed(): AbortSignal
  look(): Promise<Leader | undefined>
}

/** Checks the options at once. (The body of a generator does not run before its first step.) */
export function observeLeader<Leader extends Observed>(
  parts: ObserveParts<Leader>,
  options: ObserveOptions,
): AsyncIterableIterator<Leader | undefined> {
  checkOptions(options, OPTIONS)
  const { everySeconds = 1, signal, onError } = options
  const everyMs = ttlMsFrom('everySeconds', everySeconds)
  if (signal !== undefined) checkSignal('signal', signal)
  if (onError !== undefined) checkFunction('onError', onError)
  return changes(parts, everyMs, signal, onError)
}

async function* changes<Leader extends Observed>(
  { clock, ended, changed, look }: ObserveParts<Leader>,
  everyMs: number,
  signal: AbortSignal | undefined,
  onError: ObserveOptions['onError'],
): AsyncIterableIterator<Leader | undefined> {
  const isOver = (): boolean => ended.aborted || signal?.aborted === true
  /** The term that was yielded last: undefined for no leader, null before the first. */
  let yielded: number | undefined | null = null
  while (!isOver()) {
    // Read before the look: a change during the look is a reason for another one.
    const change = changed()
    try {
      const leader = await look()
      if (isOver()) return
      if (leader?.term !== yielded) {
        yielded = leader?.term
        yield leader
      }
    } catch (error) {
      if (isOver()) return
      if (!(error instanceof StoreError) || !error.retryable) throw error
      onError?.(error)
    }
    await pause(clock, everyMs, signal, ended, change)
  }
}
