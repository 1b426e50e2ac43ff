// `withLock`: waits for the lock, renews it while the function runs, and gives it back however the function ends.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock, NotAcquiredError } from 'holdfast'

const lock = new DistributedLock({ url: 'memory:reports' })

const pages = await lock.withLock('daily-report', generateReport, { timeoutSeconds: 300 })
console.log(`the report has ${pages} pages`)

// The function's own error comes out as it is, and the lock is free again.
await lock
  .withLock('daily-report', async () => Promise.reject(new Error('the printer is on fire')), { timeoutSeconds: 300 })
  .catch((error: Error) => console.log(`failed: ${error.message}`))

// Who does not get it in time is told by an error, because there is no result to give back.
await lock.withLock('daily-report', async () => {
  const other = new DistributedLock({ url: 'memory:reports' })
  await other
    .withLock('daily-report', generateReport, { blockingTimeoutSeconds: 0.1 })
    .catch((error) => console.log(error instanceof NotAcquiredError ? 'somebody else is writing it' : error))
  await other.close()
})

await lock.close()

async function generateReport(): Promise<number> {
  await sleep(20) // reading the day's numbers
  return 12
}
