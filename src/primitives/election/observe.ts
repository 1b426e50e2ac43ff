import { checkFunction, checkSignal, ttlMsFrom } from '../../core/arguments.ts'
import { StoreError } from '../../core/errors.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import type { Clock } from '../../core/time/clock.ts'
import { pause } from '../../core/time/pause.ts'

export interface ObserveOptions {
  /** How often to look. 1 if not said; from 0.05. */
  everySeconds?: number
  /** Ends the loop. */
  signal?: AbortSignal
  /** Hears that the store did not answer; looking goes on. */
  onError?: (error: StoreError) => void
}

const OPTIONS = optionNames<ObserveOptions>({ everySeconds: true, signal: true, onError: true })

interface Observed {
  readonly term: number
}

interface ObserveParts<Leader extends Observed> {
  readonly clock: Clock
  readonly ended: AbortSignal
  /** Aborts when looking at once is worth while; a new one each time. */
  changed(): AbortSignal
  look(): Promise<Leader | undefined>
}

/** Checks its options at once, although a generator's body begins with the first step. */
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
  /** Of whom was told last: a term's number, undefined for nobody, null when nothing was told yet. */
  let told: number | undefined | null = null
  while (!isOver()) {
    // Taken before the look: a change during it is worth another one.
    const news = changed()
    try {
      const leader = await look()
      if (isOver()) return
      if (leader?.term !== told) {
        told = leader?.term
        yield leader
      }
    } catch (error) {
      if (isOver()) return
      if (!(error instanceof StoreError) || !error.retryable) throw error
      onError?.(error)
    }
    await pause(clock, everyMs, signal, ended, news)
  }
}
