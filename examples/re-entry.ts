// Inside the function of `withLock`, the same name is re-entered instead of waiting for itself. Another task of the
// same process is excluded like any other process, although both use the same instance.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock } from 'holdfast'

await using lock = new DistributedLock({ url: 'memory:accounts' })

async function transfer(): Promise<void> {
  await lock.withLock('account:7', async (outer) => {
    await book('debit')
    await book('fee')
    console.log(`transfer done, still held: ${outer.held}`)
  })
}

async function book(what: string): Promise<void> {
  // Called directly, it acquires the lock. Called by `transfer`, it re-enters the lock of its caller.
  await lock.withLock('account:7', async (inner) => {
    await sleep(10)
    console.log(`booked the ${what}, held: ${inner.held}`)
  })
  // The end of the inner lease does not end the outer one.
}

async function otherTask(): Promise<void> {
  await sleep(5)
  const result = await lock.acquire('account:7')
  console.log(`another task gets it meanwhile: ${result.acquired}`)
}

await Promise.all([transfer(), otherTask()])
await book('interest')
