// At most three exports at once, on all instances together. A large export counts as two.
import { setTimeout as sleep } from 'node:timers/promises'
import { Semaphore } from 'holdfast'

// In production each instance is a separate process, on a store that all can reach.
const instances = [1, 2].map(() => new Semaphore({ url: 'memory:exports', limit: 3 }))

let inside = 0
let most = 0

async function exportRows(semaphore: Semaphore, size: 'small' | 'large'): Promise<void> {
  const permits = size === 'large' ? 2 : 1
  await semaphore.withPermits(
    'exports',
    async () => {
      inside += permits
      most = Math.max(most, inside)
      await sleep(10) // … the export
      inside -= permits
    },
    { permits, blocking: true },
  )
}

await Promise.all(
  instances.flatMap((each) => [exportRows(each, 'small'), exportRows(each, 'large'), exportRows(each, 'small')]),
)
console.log(`6 exports done, at most ${most} permits taken at once`)

// All permits or none, without waiting: another instance is refused.
const [mine, theirs] = instances as [Semaphore, Semaphore]
await using lease = await mine.hold('exports', { permits: 3 })
const refused = await theirs.acquire('exports')
console.log(`another instance meanwhile: ${refused.acquired}, held: ${lease.held}`)

// A lease is released once.
console.log(`released: ${await lease.release()}, and again: ${await lease.release()}`)
for (const instance of instances) await instance.close()
