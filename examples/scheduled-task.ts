// A scheduled task that only one of many instances runs, although the schedule fires in all of them.
//
// The times of the second half are 20 times shorter than in life: EXAMPLE_SPEED=1 for the real thing.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock, type LockOptions } from 'holdfast'

const speed = Number(process.env['EXAMPLE_SPEED'] ?? 20)
const seconds = (realSeconds: number) => realSeconds / speed

const instances = [1, 2, 3, 4, 5].map(
  (number) => new DistributedLock({ url: 'memory:cron', holderId: `instance-${number}` }),
)
const [first, second, late] = instances as [DistributedLock, DistributedLock, DistributedLock]

// All clocks strike at once: one gets the lock, the others do not wait for it.
const ran = await Promise.all(instances.map((lock) => dailyCleanup(lock, 'cron:daily-cleanup')))
console.log(`${instances.length} instances, ${ran.filter(Boolean).length} ran the clean-up`)

// The task is done in no time, and then an instance comes whose clock is late. It finds the lock free, and does it all over.
console.log(`clock in time: ran ${await dailyCleanup(first, 'cron:without-min-hold')}`)
await sleep(seconds(10) * 1_000)
console.log(`clock 10 s late: ran ${await dailyCleanup(late, 'cron:without-min-hold')}`)

// With `minHoldSeconds` the lock stays taken for a minute, however soon the task is done.
const minHold = { minHoldSeconds: seconds(60) }
console.log(`clock in time: ran ${await dailyCleanup(second, 'cron:with-min-hold', minHold)}`)
await sleep(seconds(10) * 1_000)
console.log(`clock 10 s late, lock kept for 60 s: ran ${await dailyCleanup(late, 'cron:with-min-hold', minHold)}`)

for (const lock of instances) await lock.close()

async function dailyCleanup(lock: DistributedLock, name: string, more: LockOptions = {}): Promise<boolean> {
  // An hour is far more than the task takes, so it needs no heartbeat; should the process die, today's run is left out.
  const result = await lock.acquire(name, { timeoutSeconds: 3_600, ...more })
  if (!result.acquired) return false
  try {
    await deleteOldFiles()
    return true
  } finally {
    await lock.release(name)
  }
}

async function deleteOldFiles(): Promise<void> {
  await sleep(5)
}
