// Each transfer between two accounts needs two locks. `withLocks` takes both at once, and cannot deadlock in any order.
// Nested locks can deadlock. Then the younger claim fails with an error that says who waits for whom.
import { setTimeout as sleep } from 'node:timers/promises'
import { DeadlockError, DistributedLock } from 'holdfast'

await using lock = new DistributedLock({
  url: 'memory:bank',
  holderId: 'bank-1',
  deadlockAfterSeconds: 0.1,
  defaults: { blocking: true }, // transfers wait for each other
})

const balances = new Map([
  ['ann', 100],
  ['ben', 100],
])

function book(from: string, to: string, amount: number): void {
  balances.set(from, (balances.get(from) ?? 0) - amount)
  balances.set(to, (balances.get(to) ?? 0) + amount)
}

async function transfer(from: string, to: string, amount: number): Promise<void> {
  await lock.withLocks([`account:${from}`, `account:${to}`], async () => book(from, to, amount))
}

const there = Array.from({ length: 20 }, () => transfer('ann', 'ben', 3))
const back = Array.from({ length: 20 }, () => transfer('ben', 'ann', 1))
await Promise.all([...there, ...back])
console.log(`40 transfers done: ann ${balances.get('ann')}, ben ${balances.get('ben')}`)

async function carelessTransfer(from: string, to: string): Promise<string> {
  try {
    return await lock.withLock(`account:${from}`, async () => {
      await sleep(20) // until the other transfer has begun
      return lock.withLock(`account:${to}`, async () => 'done')
    })
  } catch (error) {
    if (!(error instanceof DeadlockError)) throw error
    return error.cycle.map(({ lockName, heldBy }) => `waits for ${lockName}, which ${heldBy} holds`).join('; ')
  }
}

const first = carelessTransfer('ann', 'ben')
await sleep(5) // so that the second claim is the younger one
const second = carelessTransfer('ben', 'ann')
console.log(`the first: ${await first}\nthe second: ${await second}`)
