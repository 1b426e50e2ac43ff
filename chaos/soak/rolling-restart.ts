import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import type { Lease } from 'holdfast'
import { disposeAll, startAll } from '../../test/harness/redis.ts'
import { type Server, startRedis } from '../../test/harness/servers.ts'
import { DURABLE } from '../scenarios/redis-node.ts'

const NODES = 3
/** Beyond the silence of new servers. */
const GRANTED_WITHIN_SECONDS = 60

export interface RollingOptions {
  dist: string
  /** What a server has after its restart: everything, or nothing. */
  data: 'kept' | 'none'
  seconds: number
  leases: number
  ttlSeconds: number
  everySeconds: number
  /** Called before each restart. */
  onRestart?(node: number, held: number): void
}

export interface Rolled {
  granted: number
  restarts: number
  /** Leases that ended before their holder released them, and those that the store no longer had then. */
  lost: number
}

/**
 * Holds leases on Redlock for the entire time, while one server after the other restarts. Between two restarts there is
 * time for the silence of the first one and for a renewal.
 */
export async function rollRestarts(options: RollingOptions): Promise<Rolled> {
  const { dist, data, seconds, leases: count, ttlSeconds, everySeconds } = options
  const { DistributedLock } = (await import(pathToFileURL(`${dist}/index.js`).href)) as typeof import('holdfast')
  const settings = data === 'kept' ? DURABLE : {}
  const servers = await startAll(Array.from({ length: NODES }, () => startRedis({ settings })))
  const hosts = servers.map(({ port }) => `127.0.0.1:${port}`).join(',')
  const lock = new DistributedLock({ url: `redlock://${hosts}?longestTtlSeconds=${ttlSeconds}` })
  try {
    const hold = (at: number): Promise<Lease> =>
      lock.hold(`rolling:${at}`, { timeoutSeconds: ttlSeconds, blockingTimeoutSeconds: GRANTED_WITHIN_SECONDS })
    const leases = await Promise.all(Array.from({ length: count }, (_, at) => hold(at)))
    const held = (): number => leases.filter((lease) => lease.held).length
    const endMs = performance.now() + seconds * 1_000
    let restarts = 0
    for (;;) {
      const leftMs = endMs - performance.now()
      await sleep(Math.min(everySeconds * 1_000, leftMs))
      if (leftMs <= everySeconds * 1_000) break
      options.onRestart?.(restarts % NODES, held())
      await (servers[restarts % NODES] as Server).restart()
      restarts += 1
    }
    // A lease that was lost is not released: its answer is false at once.
    const released = await Promise.all(leases.map((lease) => lease.release().catch(() => false)))
    return { granted: leases.length, restarts, lost: released.filter((isHeld) => !isHeld).length }
  } finally {
    await lock.close()
    await disposeAll(servers)
  }
}
