// A long job on leases of 60 seconds. First the caller extends the lease itself every 30 seconds, then a heartbeat
// does.
//
// The example runs 20 times faster than real time. Set EXAMPLE_SPEED=1 for real time.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock } from 'holdfast'

const speed = Number(process.env['EXAMPLE_SPEED'] ?? 20)
const seconds = (realSeconds: number) => realSeconds / speed

const lock = new DistributedLock({ url: 'memory:jobs' })

await extendedByHand('job:import:1')
await keptByHeartbeat('job:import:2')
await lock.close()

async function extendedByHand(name: string): Promise<void> {
  const result = await lock.acquire(name, { timeoutSeconds: seconds(60) })
  if (!result.acquired) return console.log(result.error)
  const extending = setInterval(async () => {
    // False means that the lease had ended before: another instance may hold the lock by now.
    const extended = await lock.extend(name, seconds(60)).catch(() => false)
    if (!extended) clearInterval(extending)
  }, seconds(30) * 1_000)
  try {
    for (let chunk = 1; chunk <= 3; chunk += 1) {
      result.lock.assertHeld() // throws if the lock was lost
      await importChunk()
    }
    console.log(`${name}: 90 s of work done on leases of 60 s, extended by hand, still held: ${result.lock.held}`)
  } finally {
    clearInterval(extending)
    await lock.release(name)
  }
}

async function keptByHeartbeat(name: string): Promise<void> {
  await lock.withLock(
    name,
    async (lease) => {
      for (let chunk = 1; chunk <= 3; chunk += 1) {
        lease.assertHeld()
        await importChunk()
      }
      console.log(`${name}: 90 s of work done on leases of 60 s, kept by the heartbeat, still held: ${lease.held}`)
    },
    // Work that hangs must not hold its lock forever.
    { timeoutSeconds: seconds(60), maxHoldSeconds: seconds(600) },
  )
}

async function importChunk(): Promise<void> {
  await sleep(seconds(30) * 1_000)
}
