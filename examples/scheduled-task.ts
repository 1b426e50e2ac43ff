// A scheduled task that only one of many instances runs, although the schedule fires in all of them.
//
// The second half runs 20 times faster than real time. Set EXAMPLE_SPEED=1 for real time.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock, type LockOptions } from 'holdfast'

const speed = Number(process.env['EXAMPLE_SPEED'] ?? 20)
const seconds = (realSeconds: number) => realSeconds / speed

const instances = [1, 2, 3, 4, 5].map(
  (number) => new DistributedLock({ url: 'memory:cron', holderId: `instance-${number}` }),
)
const [first, second, late] = instances as [DistributedLock, DistributedLock, DistributedLock]

// The schedule fires in all instances at once: one gets the lock, and the others do not wait.
const ran = await Promise.all(instances.map((lock) => dailyCleanup(lock, 'cron:daily-cleanup')))
console.log(`${instances.length} instances, ${ran.filter(Boolean).length} ran the clean-up`)

// The task is quick, and then an instance with a late clock begins. It finds the lock free, and repeats the task.
console.log(`clock in time: ran ${await dailyCleanup(first, 'cron:without-min-hold')}`)
await sleep(seconds(10) * 1_000)
console.log(`clock 10 s late: ran ${await dailyCleanup(late, 'cron:without-min-hold')}`)

// With `minHoldSeconds` the lock is held for at least a minute, even if the task takes less.
const minHold = { minHoldSeconds: seconds(60) }
console.log(`clock in time: ran ${await dailyCleanup(second, 'cron:with-min-hold', minHold)}`)
await sleep(seconds(10) * 1_000)
console.log(`clock 10 s late, lock kept for 60 s: ran ${await dailyCleanup(late, 'cron:with-min-hold', minHold)}`)

for (const lock of instances) await lock.close()

async function dailyCleanup(lock: DistributedLock, name: string, more: LockOptions = {}): Promise<boolean> {
  // An hour is far more than the task takes, so it needs no heartbeat. If the process crashes, today's run is skipped.
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
