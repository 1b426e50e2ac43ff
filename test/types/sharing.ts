import { DistributedLock, type Lease, ReadWriteLock, Semaphore } from 'holdfast'
import type { Equal } from './equal.ts'

const lock = new DistributedLock({ url: 'memory:' })
const pages = new ReadWriteLock({ url: 'memory:' })
const workers = new Semaphore({ url: 'memory:', limit: 3 })

export async function callbacksInferTheirResults() {
  const several = await lock.withLocks(['a', 'b'], async (leases) => {
    const isList: Equal<typeof leases, Lease[]> = true
    return isList ? 12 : 'text'
  })
  const isUnion: Equal<typeof several, 12 | 'text'> = true
  const read = await pages.withRead('a', (lease) => lease.fencingToken)
  const written = await pages.withWrite('a', async () => 'text' as const)
  const worked = await workers.withPermits('a', () => true, { permits: 2 })
  const sameTypes: Equal<[typeof read, typeof written, typeof worked], [number, 'text', boolean]> = true
  return [isUnion, sameTypes]
}

export async function oneLeaseIsTakenUnderAnother() {
  await using outer = await lock.hold('a')
  await using inner = await workers.hold('b', { under: outer, permits: 1 })
  // @ts-expect-error `under` takes a lease, not a name
  await lock.hold('c', { under: 'a' })
  return inner
}

// @ts-expect-error `limit` is required
export const unlimited = new Semaphore({ url: 'memory:' })
// @ts-expect-error a reader has no permits
void pages.withRead('a', () => {}, { permits: 2 })
