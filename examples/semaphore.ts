// At most three exports at once, wherever they run; a large one counts for two.
import { setTimeout as sleep } from 'node:timers/promises'
import { Semaphore } from 'holdfast'

// In production each would be a process of its own, on a store that all can reach.
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
console.log(`6 exports done, at most ${most} permits out at once`)

// All or nothing, and no waiting: somebody else is told who has them.
const [mine, theirs] = instances as [Semaphore, Semaphore]
await using lease = await mine.hold('exports', { permits: 3 })
const refused = await theirs.acquire('exports')
console.log(`another one meanwhile: ${refused.acquired}, held: ${lease.held}`)

// What was given back is given back once.
console.log(`released: ${await lease.release()}, and again: ${await lease.release()}`)
for (const instance of instances) await instance.close()
