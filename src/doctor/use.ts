import type { Driver } from '../core/driver.ts'
import { isOutage } from '../core/errors.ts'
import { messageOf } from '../core/foreign-errors.ts'
import { systemRandom } from '../core/time/random.ts'
import { DistributedLock } from '../primitives/lock/distributed-lock.ts'
import { type Finding, unreachable } from './finding.ts'

/**
 * Uses the store as an application does: acquires and releases, and waits for a lock that another instance releases.
 * `rights` is what to run if the user lacks a right.
 */
export async function examineUse(open: () => Promise<Driver>, rights: string): Promise<Finding[]> {
  const [first, second] = [await open(), await open()]
  const [holder, waiter] = [first, second].map(
    (driver) => new DistributedLock({ driver, callTimeoutSeconds: CALL_SECONDS }),
  ) as [DistributedLock, DistributedLock]
  try {
    const timesMs: number[] = []
    for (let turn = 0; turn < PINGS; turn += 1) {
      const started = performance.now()
      await holder.ping()
      timesMs.push((performance.now() - started) / 2)
    }
    return [...slow(timesMs), ...(await wakeUps(holder, waiter, first))]
  } catch (error) {
    return [failure(error, rights)]
  } finally {
    await Promise.all([holder.close(), waiter.close()])
    await Promise.all([first.close(), second.close()])
  }
}

function failure(error: unknown, rights: string): Finding {
  const message = messageOf(error)
  if (/NOPERM|ACL failure|permission denied/i.test(message)) {
    return {
      code: 'NO_RIGHTS',
      severity: 'error',
      what: message,
      why: 'Claims fail, and no lock is granted.',
      fix: rights,
    }
  }
  return isOutage(error) ? unreachable(error) : unreachable(error, 'Change what the message names.')
}

function slow(timesMs: readonly number[]): Finding[] {
  // The first one connects.
  const sorted = timesMs.slice(1).sort((a, b) => a - b)
  const [median, worst] = [sorted[sorted.length >> 1] ?? 0, sorted.at(-1) ?? 0]
  if (worst < SLOW_MS) return []
  return [
    {
      code: 'SLOW',
      severity: 'warning',
      what: `A call takes ${median.toFixed(0)} ms, and at worst ${worst.toFixed(0)} ms of ${sorted.length}.`,
      why: 'A lease is trusted from the moment at which its request is sent. Slow answers use up short leases.',
      fix: `Use leases of at least ${Math.ceil((worst * 30) / 1_000)} s, or a store that is nearer.`,
    },
  ]
}

/** Whether a waiter is woken by a release, and does not have to poll. */
async function wakeUps(holder: DistributedLock, waiter: DistributedLock, driver: Driver): Promise<Finding[]> {
  if (!driver.capabilities.wake) return []
  const lockName = `doctor:${systemRandom.id()}`
  const lease = await holder.hold(lockName, { timeoutSeconds: 20 })
  const failures: unknown[] = []
  const stop = waiter.on('listenFailed', ({ error }) => failures.push(error))
  const waiting = waiter.hold(lockName, { timeoutSeconds: 20, blockingTimeoutSeconds: 15 })
  waiting.catch(() => undefined)
  await new Promise((resolve) => setTimeout(resolve, SUBSCRIBED_MS))
  const released = performance.now()
  await lease.release()
  const next = await waiting
  const wokenMs = performance.now() - released
  await next.release()
  stop()
  if (wokenMs < WOKEN_MS && failures.length === 0) return []
  const [error] = failures
  return [
    {
      code: 'NO_WAKE_UPS',
      severity: 'warning',
      what:
        `A waiter got the lock ${wokenMs.toFixed(0)} ms after its release` +
        `${error === undefined ? '.' : `, and could not listen: ${messageOf(error)}`}`,
      why: 'Waiters poll instead of being woken: hand-offs are slow, and the store has more to do.',
      fix:
        driver.name === 'redis' || driver.name === 'redlock'
          ? 'Allow the channels holdfast:*, and connections that subscribe.'
          : 'Connect without a pooler in transaction mode: LISTEN needs a session.',
    },
  ]
}

const CALL_SECONDS = 3
const PINGS = 11
const SLOW_MS = 250
const SUBSCRIBED_MS = 500
/** A busy machine may take a while. A waiter that cannot listen at all is found by its event. */
const WOKEN_MS = 2_000
