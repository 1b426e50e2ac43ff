// Inside `withLock`'s own function the same name is entered again instead of waiting for itself. Another task of the same process is
// kept out like any stranger, although both use the process's one instance.
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
  // Called on its own it takes the lock; called by `transfer` it finds it taken by its caller, and goes on.
  await lock.withLock('account:7', async (inner) => {
    await sleep(10)
    console.log(`booked the ${what}, held: ${inner.held}`)
  })
  // Leaving the inner one does not end the outer one.
}

async function stranger(): Promise<void> {
  await sleep(5)
  const result = await lock.acquire('account:7')
  console.log(`another task gets it meanwhile: ${result.acquired}`)
}

await Promise.all([transfer(), stranger()])
await book('interest')
