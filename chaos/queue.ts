import { randomUUID } from 'node:crypto'
import { pathToFileURL } from 'node:url'
import type { Clients } from './clients.ts'
import { nowMs } from './history.ts'

/** How long a client may take to be seen in the queue. */
const QUEUED_WITHIN_MS = 20_000

/**
 * Lets all clients queue for one lock, one after the other, and then releases it. Each client gets the lock and
 * releases it at once, so the order of their tokens is the order in which they were served.
 */
export async function queueForOneLock(
  clients: Clients,
  count: number,
  dist: string,
  url: string,
): Promise<{ client: number; token: number }[]> {
  await clients.quiet()
  const { DistributedLock } = (await import(pathToFileURL(`${dist}/index.js`).href)) as typeof import('holdfast')
  const lock = new DistributedLock({ url })
  try {
    const name = `queue:${randomUUID()}`
    const startedMs = nowMs()
    const lease = await lock.hold(name, { timeoutSeconds: 60 })
    // The languages take turns: the clients of one are the even ones.
    for (let client = 0; client < count; client += 1) {
      await clients.call(client, 'queue', name)
      const lateMs = nowMs() + QUEUED_WITHIN_MS
      while ((await lock.inspect(name)).waiters.length <= client) {
        if (nowMs() > lateMs) {
          const states = Array.from({ length: client + 1 }, async (_, at) => {
            const state = await clients.call(at, 'queueState', name).catch((error: Error) => error.message)
            return `client ${at}: ${state}`
          })
          const seen = await lock.inspect(name)
          const places = `${seen.leases.length} leases, and places of ${seen.waiters.map((each) => each.holderId)}`
          const sinceMs = Math.round(nowMs() - startedMs)
          throw new Error(
            `client ${client} is not in the queue of "${name}" ${sinceMs} ms after the first: ` +
              `${places}\n${(await Promise.all(states)).join('\n')}`,
          )
        }
        await new Promise((resolve) => setTimeout(resolve, 20))
      }
    }
    await lease.release()
    const tokens = await clients.callAll('queuedToken', name)
    return tokens.map((token, client) => ({ client, token: Number(token) }))
  } finally {
    await lock.close()
  }
}
