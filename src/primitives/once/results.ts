import { checkJson, checkText } from '../../core/arguments.ts'
import type { Holder } from '../../core/claim/holder.ts'
import type { LeaseRecord, Metadata } from '../../core/driver.ts'
import { InvalidArgumentError, ResultNotKeptError, UnsupportedError } from '../../core/errors.ts'
import { attempt, messageOf, textOf } from '../../core/foreign-errors.ts'
import { MAX_NAME_LENGTH } from '../../core/limits.ts'
import { eitherSignal } from '../../core/time/abort.ts'

/**
 * Where the result of a job is kept: in the metadata of a lease that no process holds. It has to outlive the process
 * that made it, so it is neither renewed nor released. The store ends it with its time to live.
 */

/** A result that is in the store. */
export interface FoundResult {
  readonly record?: LeaseRecord
  readonly metadata: Metadata | undefined
  /** On the monotonic clock: when the store was asked. The result was there at some moment after that. */
  readonly askedMs: number
}

/** The lock names of a key. They have the same beginning and different ends, so no run is the result of another key. */
export function namesOf(key: string): { run: string; done: string } {
  checkText('key', key, MAX_KEY_LENGTH)
  return { run: `once:${key}:run`, done: `once:${key}:done` }
}

export const MAX_KEY_LENGTH = MAX_NAME_LENGTH - 'once:'.length - ':done'.length

/** Checked before the job runs: if its result could not be kept, every instance would run it again. */
export function assertKeepsResults({ capabilities, driverName, longestTtlMs }: Holder, forMs: number): void {
  if (capabilities.expiry === 'session') {
    throw new UnsupportedError(
      `the ${driverName} driver's leases last as long as a connection, so a result could not outlive the process ` +
        'that made it',
    )
  }
  if (!capabilities.metadata) {
    throw new UnsupportedError(`the ${driverName} driver keeps no metadata with a lock, so it cannot keep results`)
  }
  if (forMs <= longestTtlMs) return
  const rule = `at most ${longestTtlMs / 1_000}, the longest that the ${driverName} driver keeps anything`
  throw new InvalidArgumentError('forSeconds', forMs / 1_000, rule)
}

/** If the result cannot be kept, the reason is kept instead: the job is done, and must not run again. */
export function metadataFrom({ own, isReadable }: Boxed<unknown>): Metadata {
  if (own === undefined) return {}
  if (!isReadable) return { notKept: 'result has a `then` that cannot be read, so no call can resolve with it' }
  try {
    return { result: checkJson('result', own) }
  } catch (error) {
    // The message quotes the result. What the store rejects would lose the record that the job is done.
    return { notKept: messageOf(error).slice(0, 1_000).replaceAll('\0', '').toWellFormed() }
  }
}

/**
 * What the function of a job returned, in a box: nothing can resolve with a result whose `then` cannot be read, and the
 * job would count as failed.
 */
export async function boxed<T>(returned: Promise<T> | T): Promise<Boxed<T>> {
  const isReadable = attempt(() => [(returned as Partial<PromiseLike<T>> | undefined)?.then]) !== undefined
  return { own: isReadable ? await returned : (returned as T), isReadable }
}

export interface Boxed<T> {
  readonly own: T
  readonly isReadable: boolean
}

/** The type is an assumption of the caller: that a key always means the same job. */
export function resultFrom<T>(key: string, metadata: Metadata | undefined): T {
  if (metadata?.['notKept'] !== undefined) throw new ResultNotKeptError(key, textOf(metadata['notKept']))
  // A copy for each caller, so that none sees what another does to its result.
  return structuredClone(metadata?.['result']) as T
}

/**
 * The calls of one instance that wait for a run. All of them get a result as soon as one has found it. Otherwise each
 * would take the lease in turn, only to find the same result.
 */
export class WaitingCalls {
  readonly #calls = new Map<string, Set<WaitingCall>>()

  /** Resolves with what `acquire` resolves with, or with the result that another call has found meanwhile. */
  async wait<Turn>(
    key: string,
    beganMs: number,
    signal: AbortSignal | undefined,
    acquire: (signal: AbortSignal) => Promise<Turn>,
  ): Promise<Turn | FoundResult> {
    const calls = this.#calls.get(key) ?? new Set()
    const call: WaitingCall = { beganMs, stop: new AbortController(), result: undefined }
    this.#calls.set(key, calls.add(call))
    using either = signal && eitherSignal(signal, call.stop.signal)
    try {
      return await acquire(either?.signal ?? call.stop.signal)
    } catch (error) {
      if (call.result === undefined || signal?.aborted) throw error
      return call.result
    } finally {
      calls.delete(call)
      if (calls.size === 0) this.#calls.delete(key)
    }
  }

  /**
   * Ends the waits for the key with this result. Calls that began after the store was asked go on waiting: the answer
   * may be late, and the result's period may have been over when they began.
   */
  found(key: string, result: FoundResult): void {
    for (const call of this.#calls.get(key) ?? []) {
      if (call.beganMs > result.askedMs) continue
      call.result = result
      call.stop.abort()
    }
  }
}

interface WaitingCall {
  /** On the monotonic clock. */
  readonly beganMs: number
  readonly stop: AbortController
  result: FoundResult | undefined
}
