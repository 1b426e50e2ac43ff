// The payment of an order: whoever gets the lock charges the card, and everybody else is told that it is being done.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock } from 'holdfast'

// Two instances of one service. In production each would be a process of its own, on a store that both can reach.
const instances = [
  new DistributedLock({ url: 'memory:payments', holderId: 'instance-1' }),
  new DistributedLock({ url: 'memory:payments', holderId: 'instance-2' }),
]

await Promise.all(instances.map((lock) => processPayment(lock, '123')))
for (const lock of instances) await lock.close()

async function processPayment(lock: DistributedLock, orderId: string): Promise<void> {
  const lockName = `order:${orderId}`
  // The heartbeat keeps the lease for as long as the provider takes, which may be longer than its 30 s.
  const result = await lock.acquire(lockName, { heartbeat: true, metadata: { doing: 'payment' } })
  if (result.acquired) {
    try {
      await chargeCard(orderId)
      console.log(`${lock.holderId} charged the card for order ${orderId}`)
    } finally {
      await lock.release(lockName)
    }
  } else {
    console.log(`${lock.holderId} left it: ${result.holder?.holderId} is already at order ${orderId}`)
  }
}

async function chargeCard(_orderId: string): Promise<void> {
  await sleep(50) // the payment provider is thinking
}
