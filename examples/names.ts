// Names by convention. A lock name is any text of up to 255 characters. With a common pattern, two features never use
// the same name by accident, and `inspect` can list related locks by their prefix.
import { connect, DistributedLock } from 'holdfast'

const lockNames = {
  profileUpdate: (userId: number) => `lock:user:${userId}:profile-update`,
  job: (type: string, id: string) => `job:${type}:${id}`,
  cron: (task: string) => `cron:${task}`,
  singleton: (what: string) => `singleton:${what}`,
}

const driver = await connect('memory:names')
const lock = new DistributedLock({ driver, holderId: 'instance-1' })

await using _profile = await lock.hold(lockNames.profileUpdate(42))
await using _importJob = await lock.hold(lockNames.job('import', '2026-01'), { metadata: { rows: 5_000 } })
await using _exportJob = await lock.hold(lockNames.job('export', '7'))
await using _cron = await lock.hold(lockNames.cron('daily-cleanup'), { timeoutSeconds: 3_600 })
await using _singleton = await lock.hold(lockNames.singleton('mail-queue'))

const { leases } = await driver.inspect({ prefix: 'job:' })
for (const { lockName, holderId, metadata } of leases) {
  console.log(`${lockName} is held by ${holderId}`, metadata ?? '')
}
const everything = await driver.inspect({})
console.log(
  `${everything.leases.length} locks are held: ${everything.leases.map((lease) => lease.lockName).join(', ')}`,
)
