// `withLock` acquires the lock, renews it while the function runs, and releases it when the function ends or throws.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock, NotAcquiredError } from 'holdfast'

const lock = new DistributedLock({ url: 'memory:reports' })

const pages = await lock.withLock('daily-report', generateReport, { timeoutSeconds: 300 })
console.log(`the report has ${pages} pages`)

// An error of the function is passed on, and the lock is free again.
await lock
  .withLock('daily-report', async () => Promise.reject(new Error('the printer is on fire')), { timeoutSeconds: 300 })
  .catch((error: Error) => console.log(`failed: ${error.message}`))

// If the lock is not acquired in time, `withLock` throws, because the function has no result.
await lock.withLock('daily-report', async () => {
  const other = new DistributedLock({ url: 'memory:reports' })
  await other
    .withLock('daily-report', generateReport, { blockingTimeoutSeconds: 0.1 })
    .catch((error) => console.log(error instanceof NotAcquiredError ? 'another instance is writing it' : error))
  await other.close()
})

await lock.close()

async function generateReport(): Promise<number> {
  await sleep(20) // reading the day's numbers
  return 12
}
