import type { Driver } from '../core/driver.ts'
import { isOutage } from '../core/errors.ts'
import { messageOf } from '../core/foreign-errors.ts'
import { systemRandom } from '../core/time/random.ts'
import { DistributedLock } from '../primitives/lock/distributed-lock.ts'
import { type Finding, unreachable } from './finding.ts'
import { aboutRoundTrips, aboutTtls, measureRoundTrips } from './timing.ts'

/**
 * Uses the store as an application does: acquires and releases, and waits for a lock that another instance releases.
 * Compares how long that takes with the TTLs of the leases that are in the store.
 * `rights` is what to run if the user lacks a right, and `listenRights` if the user may lock but cannot be woken.
 */
export async function examineUse(
  open: () => Promise<Driver>,
  rights: string,
  listenRights = rights,
): Promise<Finding[]> {
  const [first, second] = [await open(), await open()]
  const [holder, waiter] = [first, second].map(
    (driver) => new DistributedLock({ driver, callTimeoutSeconds: CALL_SECONDS }),
  ) as [DistributedLock, DistributedLock]
  const findings: Finding[] = []
  try {
    const trips = await measureRoundTrips(holder)
    findings.push(...aboutRoundTrips(trips))
    findings.push(...(await aboutTtls(holder, first, trips).catch((error: unknown) => [notListed(error, rights)])))
    findings.push(...(await wakeUps(holder, waiter, first, listenRights)))
  } catch (error) {
    findings.push(failure(error, rights))
  } finally {
    await Promise.all([holder.close(), waiter.close()])
    await Promise.all([first.close(), second.close()])
  }
  return findings
}

function failure(error: unknown, rights: string): Finding {
  const message = messageOf(error)
  if (isMissingRight(message)) {
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

/** Fails where locks themselves may work: for a user without the right to list keys, for example. */
function notListed(error: unknown, rights: string): Finding {
  const message = messageOf(error)
  return {
    code: 'NO_INSPECTION',
    severity: 'warning',
    what: `The leases could not be listed: ${message}`,
    why: 'Their TTLs were not compared with the round trips. `holdfast ls` and `holdfast top` do not work either.',
    fix: isMissingRight(message) ? rights : 'Change what the message names.',
  }
}

const isMissingRight = (message: string): boolean => /NOPERM|ACL failure|permission denied/i.test(message)

/** Whether a waiter is woken by a release, and does not have to poll. */
async function wakeUps(
  holder: DistributedLock,
  waiter: DistributedLock,
  driver: Driver,
  rights: string,
): Promise<Finding[]> {
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
  const isRedis = driver.name === 'redis' || driver.name === 'redlock'
  const needsSession = 'Connect without a pooler in transaction mode: LISTEN needs a session.'
  const postgresFix = isMissingRight(messageOf(error)) ? rights : needsSession
  return [
    {
      code: 'NO_WAKE_UPS',
      severity: 'warning',
      what:
        `A waiter got the lock ${wokenMs.toFixed(0)} ms after its release` +
        `${error === undefined ? '.' : `, and could not listen: ${messageOf(error)}`}`,
      why: 'Waiters poll instead of being woken: hand-offs are slow, and the store has more to do.',
      fix: isRedis ? 'Allow the channels holdfast:*, and connections that subscribe.' : postgresFix,
    },
  ]
}

const CALL_SECONDS = 3
const SUBSCRIBED_MS = 500
/** A busy machine may take a while. A waiter that cannot listen at all is found by its event. */
const WOKEN_MS = 2_000
