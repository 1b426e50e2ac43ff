// Two uses of AbortSignal: the caller's signal ends the wait, and the lease's signal reports that the lock was lost.
import { setTimeout as sleep } from 'node:timers/promises'
import { AbortedError, DistributedLock, LeaseLostError } from 'holdfast'

await using lock = new DistributedLock({ url: 'memory:abort' })
await using other = new DistributedLock({ url: 'memory:abort' })

// 1. The user closes the page while the request waits for the lock.
{
  await using _busy = await other.hold('singleton:indexer')
  const page = new AbortController()
  setTimeout(() => page.abort(new Error('the user has gone')), 30)
  const started = Date.now()
  try {
    await lock.acquire('singleton:indexer', { blockingTimeoutSeconds: 60, signal: page.signal })
  } catch (error) {
    if (!(error instanceof AbortedError)) throw error
    console.log(`gave up: ${(error.cause as Error).message}, long before 60 s: ${Date.now() - started < 30_000}`)
  }
}

// 2. The lease expires during the work, here because it has no heartbeat. Every operation that takes the signal stops.
const result = await lock.acquire('singleton:indexer', { blocking: true, timeoutSeconds: 0.2, heartbeat: false })
if (result.acquired) {
  try {
    await sleep(60_000, undefined, { signal: result.lock.signal })
  } catch {
    const { reason } = result.lock.signal
    console.log(`stopped: the lease was lost: ${reason instanceof LeaseLostError}, still held: ${result.lock.held}`)
  }
}
