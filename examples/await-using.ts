// `await using` releases the lock at the end of the block, also if the block throws or returns.
import { DistributedLock } from 'holdfast'

await using lock = new DistributedLock({ url: 'memory:files' }) // closed at the end of the program

async function rewriteIndex(fail: boolean): Promise<void> {
  await using lease = await lock.hold('file:index', { timeoutSeconds: 20 })
  console.log(`held, with a fencing token: ${lease.held && lease.fencingToken > 0}`)
  if (fail) throw new Error('the disk is full')
}

await rewriteIndex(false)
await rewriteIndex(true).catch((error: Error) => console.log(`failed: ${error.message}`))

const after = await lock.acquire('file:index')
console.log(`free again: ${after.acquired}`)
