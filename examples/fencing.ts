// A process that was paused for longer than its lease writes too late, and the fence rejects the write.
//
// The example runs 20 times faster than real time. Set EXAMPLE_SPEED=1 for real time.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock, Fence, type Lease, StaleTokenError } from 'holdfast'

const speed = Number(process.env['EXAMPLE_SPEED'] ?? 20)
const seconds = (realSeconds: number) => realSeconds / speed

const [paused, successor] = ['instance-1', 'instance-2'].map(
  (holderId) => new DistributedLock({ url: 'memory:fencing', holderId }),
) as [DistributedLock, DistributedLock]

// The fence protects the report: every write passes it first.
const fence = new Fence()
let report = ''
function write(text: string, lease: Lease): void {
  fence.accept('report', lease)
  report = text
}

const stale = await paused.hold('report', { timeoutSeconds: seconds(10), heartbeat: false })
write('draft of instance-1', stale)
await sleep(seconds(12) * 1_000) // … a garbage collection, a suspended machine, a debugger …

await successor.withLock('report', (lease) => write('report of instance-2', lease))

try {
  write('late report of instance-1', stale) // even a check of `stale.held` could come too early
} catch (error) {
  console.log(`refused: ${error instanceof StaleTokenError}`)
}
console.log(report)

await paused.close()
await successor.close()
