import assert from 'node:assert/strict'
import type { LockOptions } from '../../../primitives/lock/claims.ts'
import type { MutexHandle, MutexInstance, Taken } from '../mutex.ts'
import type { MutexProcess } from '../test-context.ts'
import { LONG_MS, until } from '../timing.ts'

const LONG = LONG_MS / 1_000

/** Answers at once. */
export const AT_ONCE: LockOptions = { timeoutSeconds: LONG, blocking: false }

/** Waits for longer than the suite itself: a claim that is granted only at the end of this time fails the test. */
export const WAITING: LockOptions = { timeoutSeconds: LONG, blockingTimeoutSeconds: LONG }

export async function mustTake(
  instance: MutexInstance,
  lockName: string,
  options: LockOptions = AT_ONCE,
): Promise<MutexHandle> {
  const taken = await instance.take(lockName, options)
  assert.ok(taken.acquired, `"${lockName}" should have been acquired, but is held by ${holderOf(taken)}`)
  return taken.handle
}

export async function mustWait(
  instance: MutexInstance,
  lockName: string,
  options: LockOptions = AT_ONCE,
): Promise<Taken & { acquired: false }> {
  const taken = await instance.take(lockName, options)
  assert.ok(!taken.acquired, `"${lockName}" should have been refused`)
  return taken
}

/**
 * Begins to wait and resolves once the store has refused the claim, so that what the test starts next comes after it.
 * On a machine under load the lease in its way may have ended before it asked. Then it has the lock by now, and what
 * the test claims about the two holders is still true.
 */
export async function beginToWait(
  process: MutexProcess,
  lockName: string,
  options: LockOptions = WAITING,
): Promise<{ readonly taken: Promise<Taken> }> {
  const { acquire } = process.network.counts
  const before = acquire.answered
  const taken = process.take(lockName, options)
  let settled = false
  const settle = (): void => {
    settled = true
  }
  // The test awaits the outcome later. Until then a rejection must not count as unhandled.
  taken.then(settle, settle)
  const asks = process.asksBeforeWaiting ?? 1
  await until('the first answer to a claim', () => settled || acquire.answered >= before + asks)
  return { taken }
}

const holderOf = (taken: Taken): string => (taken.acquired ? 'us' : (taken.holder?.holderId ?? 'an unknown holder'))
