// The Web Locks API on a store. A function that was written for navigator.locks is called by two processes, which are
// two clients here.
import { setTimeout as sleep } from 'node:timers/promises'
import { type LockManager, WebLocks } from 'holdfast/web-locks'

await using web1 = new WebLocks({ url: 'memory:web-locks', holderId: 'instance-1' })
await using web2 = new WebLocks({ url: 'memory:web-locks', holderId: 'instance-2' })
const [one, two] = [web1.locks, web2.locks]

// Only one instance synchronises, and the others return at once.
async function sync(locks: LockManager): Promise<string> {
  return locks.request('sync', { ifAvailable: true }, async (lock) => {
    if (lock === null) return 'another instance synchronises'
    await sleep(20)
    return 'synchronised'
  })
}
console.log((await Promise.all([sync(one), sync(two)])).sort().join(', '))

// Readers share the lock, and a writer is alone.
const order: string[] = []
const read = (locks: LockManager) => locks.request('document', { mode: 'shared' }, () => sleep(5))
const write = (locks: LockManager) =>
  locks.request('document', () => {
    order.push('written')
  })
await Promise.all([read(one), read(one), write(one).then(() => order.push('done'))])
console.log(order.join(', '))

// An operator steals the lock from an instance that hangs. Its request rejects, and its lock's signal aborts.
const begun = new AbortController()
const hangs = two
  .request('import', async (lock) => {
    begun.abort()
    await sleep(60_000, undefined, lock === null ? {} : { signal: lock.signal })
  })
  .catch((error: DOMException) => `the other instance: ${error.name}`)
await sleep(60_000, undefined, { signal: begun.signal }).catch(() => {})
const { held } = await one.query()
console.log(held.map(({ name, clientId }) => `${name} is held by ${clientId}`).join())
console.log(await one.request('import', { steal: true }, () => 'taken over'))
console.log(await hangs)
