import { checkFunction, checkSignal, waitMsFrom } from '../../core/arguments.ts'
import { AbortedError, ClosedError, LeaseLostError, NotHeldError } from '../../core/errors.ts'
import { attempt, isA } from '../../core/foreign-errors.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { onAbort, pause } from '../../core/time/abort.ts'
import { backoffMs } from '../../core/time/backoff.ts'
import type { Instance } from '../instance.ts'
import type { CampaignOptions, HeldTerm, Term } from './term.ts'

export interface LeadOptions<Value = unknown>
  extends Pick<CampaignOptions<Value>, 'value' | 'maxTermSeconds' | 'onDemoted'> {
  /** Ends `run`: the callback is asked to stop, and the leader resigns when it has stopped. */
  signal?: AbortSignal
  /** Called with what the callback threw; `run` then goes on. If it throws itself, `run` rejects with that. */
  onError?: (error: unknown, term: Term<Value>) => void
  /**
   * How long to rest after resigning before campaigning again: a random time from half of this to all of it. It doubles
   * with each failure in a row, up to 30. After a failure the rest is at least 0.05.
   *
   * @default 1
   */
  restSeconds?: number
}

const OPTIONS = optionNames<LeadOptions>({
  value: true,
  maxTermSeconds: true,
  onDemoted: true,
  signal: true,
  onError: true,
  restSeconds: true,
})

type Lead<Value> = (term: Term<Value>) => Promise<unknown> | unknown

/** See `LeaderElection.run`. */
export async function leadRepeatedly<Value>(
  instance: Instance,
  campaign: (options: CampaignOptions<Value>) => Promise<HeldTerm<Value>>,
  lead: Lead<Value>,
  options: LeadOptions<Value>,
): Promise<void> {
  const { signal, onError, restSeconds = 1, ...campaigning } = checkOptions(options, OPTIONS)
  const { clock, random, closing: ended } = instance
  const restMs = waitMsFrom('restSeconds', restSeconds)
  if (onError !== undefined) checkFunction('onError', onError)
  if (signal !== undefined) checkSignal('signal', signal)
  const isOver = (): boolean => ended.aborted || signal?.aborted === true

  let failures = 0
  while (!isOver()) {
    const how = signal === undefined ? campaigning : { ...campaigning, signal }
    const term = await campaign(how).catch((error: unknown) => {
      // A campaign that ended because this ends is not an error.
      if (!isOver() || !(error instanceof AbortedError || error instanceof ClosedError)) throw error
    })
    if (!term) return
    const work = leadOnce(term, lead, signal, ended)
    const { failed, error, lost } = await (instance.holder?.running(work) ?? work)
    if (failed && onError === undefined) throw error
    if (failed) onError?.(error, term)
    failures = failed ? failures + 1 : 0
    if (lost || isOver()) continue
    const firstMs = failed ? Math.max(restMs, MIN_REST_MS) : restMs
    const maxMs = Math.max(restMs, MAX_REST_MS)
    await pause(clock, backoffMs({ firstMs, maxMs }, Math.max(failures, 1), random), signal, ended)
  }
}

async function leadOnce<Value>(
  term: HeldTerm<Value>,
  lead: Lead<Value>,
  signal: AbortSignal | undefined,
  ended: AbortSignal,
) {
  const stop = (): void => term.stop(new AbortedError(`leading "${term.name}"`, signal?.reason ?? ended.reason))
  const stopListening = [signal, ended].flatMap((each) => (each === undefined ? [] : [onAbort(each, stop)]))
  let failed = false
  let error: unknown
  try {
    if (signal?.aborted || ended.aborted) stop()
    // The process may have stalled until the term was over.
    else if (term.held) await lead(term)
  } catch (thrown) {
    error = thrown
    failed = !isHowItStops(term, thrown)
  }
  for (const end of stopListening) end()
  await term[Symbol.asyncDispose]()
  return { failed, error, lost: term.lost }
}

/** Reading the signal notices a loss that no timer has reported yet. */
function isHowItStops({ signal }: Term, thrown: unknown): boolean {
  if (!signal.aborted) return false
  if (thrown === signal.reason || isA(thrown, LeaseLostError) || isA(thrown, NotHeldError)) return true
  return isA(thrown, Error) && attempt(() => thrown.name) === 'AbortError'
}

const MAX_REST_MS = 30_000
/** After a failure, even with `restSeconds: 0`: a callback that always fails must not campaign in a busy loop. */
const MIN_REST_MS = 100
