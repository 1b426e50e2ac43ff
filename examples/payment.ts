// The payment of an order: the instance that gets the lock charges the card, and the others skip the order.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock } from 'holdfast'

// Two instances of one service. In production each is a separate process, on a store that both can reach.
const charged = new Set<string>() // the orders that your own records show as paid
const instances = [
  new DistributedLock({ url: 'memory:payments', holderId: 'instance-1' }),
  new DistributedLock({ url: 'memory:payments', holderId: 'instance-2' }),
]

await Promise.all(instances.map((lock) => processPayment(lock, '123')))
for (const lock of instances) await lock.close()

async function processPayment(lock: DistributedLock, orderId: string): Promise<void> {
  const lockName = `order:${orderId}`
  // The heartbeat renews the lease of 30 s if the provider takes longer.
  const result = await lock.acquire(lockName, { heartbeat: true, metadata: { doing: 'payment' } })
  if (result.acquired) {
    try {
      // The lock prevents two payments at the same time. Your records prevent a second one after the first.
      if (charged.has(orderId)) return
      await chargeCard(orderId)
      charged.add(orderId)
      console.log(`${lock.holderId} charged the card for order ${orderId}`)
    } finally {
      await lock.release(lockName)
    }
  } else {
    console.log(`${lock.holderId} skipped order ${orderId}: ${result.holder?.holderId} is processing it`)
  }
}

async function chargeCard(_orderId: string): Promise<void> {
  await sleep(50) // a call of the payment provider, with the order's id as its idempotency key
}
