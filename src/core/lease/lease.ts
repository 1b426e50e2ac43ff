import { checkSignal } from '../arguments.ts'
import type { LockInfo } from '../lock-info.ts'
import { checkOptions, optionNames } from '../options.ts'

/**
 * A granted claim. It ends by release, expiry or loss, and never comes back.
 *
 * A lease is an `AsyncDisposable`: `await using` releases it at the end of the block. Disposing never throws, so that
 * it does not hide an error of the block. Read `held` to learn of a loss, and listen to `releaseFailed` to learn of a
 * release that failed.
 *
 * @example
 * ```ts
 * await using lease = await lock.hold('monthly-report')
 * for (const page of pages) {
 *   lease.assertHeld()
 *   await save(page, lease.fencingToken)
 * }
 * ```
 */
export interface Lease extends LockInfo, AsyncDisposable {
  /**
   * Aborts when the lease is lost: no later than its deadline, with a `LeaseLostError` as the reason. It also aborts
   * when its instance is being closed and asks running functions to stop; the lease is then still held for a short
   * time. A release by you does not abort it.
   */
  readonly signal: AbortSignal
  /**
   * Whether you can rely on the lease now. It is computed from the clocks at each access, so it is correct in the first
   * statement after a stall, when no timer has run yet.
   */
  readonly held: boolean
  /** For how long you can rely on the lease from now on if no renewal succeeds. 0 if it is not held. */
  readonly remainingSeconds: number
  /**
   * Does nothing if the lease is held, and throws otherwise.
   *
   * @throws `LeaseLostError` if the lease was lost
   * @throws `NotHeldError` if the lease was released or handed over
   */
  assertHeld(): void
  /**
   * Releases the lock. The lease is not held from the call on, even if the call fails. With `minHoldSeconds` the store
   * keeps the lock until that time has passed. With `reacquire: 'extend'`, the last of several users releases the lock,
   * and this ends only your part. Functions that entered the lock again inside yours, and still run, lose it: their
   * `signal` aborts, and their `withLock` rejects.
   *
   * @returns true if the lease was still held, false if it had already ended. No other lease is touched then
   * @throws `StoreError` if the store did not answer. Without `minHoldSeconds` the release is sent again in the
   * background. If it never arrives, the lease expires after its TTL
   * @throws `AbortedError` if `signal` aborts before the answer. The release is sent all the same
   * @throws `InvalidArgumentError`
   */
  release(options?: AnswerOptions): Promise<boolean>
  /**
   * Sets the lease to end `seconds` from now, which may be sooner than before. A lease with several users (a lock that
   * was entered again, or `reacquire: 'extend'`) is never shortened.
   *
   * @param seconds from 0.05 to one year
   * @returns true if the lease was extended, false if it had already ended. It is not acquired again then
   * @throws `StoreError` if the store did not answer. The lease then lasts until the earlier of the two ends, or as
   * long as its heartbeat renews it
   * @throws `AbortedError` if `signal` aborts before the answer. It is then unknown whether the lease was extended
   * @throws `InvalidArgumentError`
   */
  extend(seconds: number, options?: AnswerOptions): Promise<boolean>
  /**
   * Hands the lease over to another process: `DistributedLock.restore` turns the text into a lease with the same
   * fencing token. From the call on this process does not hold the lease, and neither renews nor releases it. The lease
   * expires after its TTL unless it is restored before that.
   *
   * **The text is a secret**: with it, a process can extend and release the lease. Restore it only once: two processes
   * that restore the same text both hold the lock.
   *
   * @returns the text
   * @throws `LeaseLostError` or `NotHeldError` if the lease is not held
   * @throws `UnsupportedError` inside a function such as the one of `withLock`, which releases the lock when it ends;
   * for a lock that was entered again; for a shared lease; and for a driver whose leases end with their connection
   */
  serialize(): Promise<string>
}

export interface AnswerOptions {
  /** If it aborts, the call stops waiting for the answer of the store and rejects with an `AbortedError`. */
  signal?: AbortSignal
}

const ANSWER_OPTIONS = optionNames<AnswerOptions>({ signal: true })

/** @throws `InvalidArgumentError` */
export function answerSignal(options: AnswerOptions | undefined): AbortSignal | undefined {
  if (options === undefined) return undefined
  const { signal } = checkOptions(options, ANSWER_OPTIONS)
  return signal === undefined ? undefined : checkSignal('signal', signal)
}
