// A page with many readers and few writers. Readers share the lock. A writer waits until the earlier readers have left,
// and later readers wait behind it.
import { setTimeout as sleep } from 'node:timers/promises'
import { DeadlockError, ReadWriteLock } from 'holdfast'

await using pages = new ReadWriteLock({ url: 'memory:pages', defaults: { blocking: true } })

let title = 'Harbours'
let readers = 0

async function read(who: string): Promise<void> {
  await pages.withRead('page:7', async () => {
    readers += 1
    await sleep(20)
    console.log(`${who} reads "${title}", ${readers} inside`)
  })
}

async function rename(to: string): Promise<void> {
  await pages.withWrite('page:7', async () => {
    readers = 0
    title = to
    console.log('written')
  })
}

const early = [read('ann'), read('ben')]
await sleep(5) // until they hold the lock
const change = rename('Harbours and piers')
await sleep(5) // until it is in the queue
await Promise.all([...early, change, read('cem')])

// A reader cannot become a writer, because it would wait for itself.
await pages.withRead('page:7', async () => {
  const error = await rename('never').catch((reason: unknown) => reason)
  console.log(`refused: ${error instanceof DeadlockError}`)
})
