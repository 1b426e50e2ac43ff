import { setTimeout as sleep } from 'node:timers/promises'
import { startPostgres } from '../../test/harness/servers.ts'
import { askPostgres } from '../../test/harness/wire.ts'
import { load } from '../connect.ts'
import type { Draw } from '../draw.ts'
import { privateBytes } from './server-memory.ts'
import type { Left, SoakStore, StoreSample } from './store.ts'

/** The sessions of the client. */
const SESSIONS = `FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`
/** Rows that end by themselves. */
const ENDING = ['distributed_locks', 'holdfast_leases', 'holdfast_waiters', 'holdfast_rates']
/**
 * Calls remove rows that have ended: one call of acquire in eight, for rows that ended 5 seconds ago, and one call of
 * consume in four. So the last rows go with the next calls of any client. This many calls must be enough.
 */
const SWEEPING_CALLS = 200

export async function openPostgres(dist: string): Promise<SoakStore> {
  const server = await startPostgres()
  const ask = (sql: string) => askPostgres({ port: server.port, timeoutMs: 30_000 }, sql)
  const one = async (sql: string): Promise<string> => (await ask(sql))[0]?.[0] ?? ''
  const rows = async (): Promise<string[]> => {
    const counts = await ask(ENDING.map((name) => `SELECT '${name}', count(*) FROM ${name}`).join(' UNION ALL '))
    return counts.filter(([, count]) => count !== '0').map(([name, count]) => `${count} rows in ${name}`)
  }
  const connections = async (): Promise<number> => Number(await one(`SELECT count(*) ${SESSIONS}`))
  const sample = async (): Promise<StoreSample> => {
    const found = await ask(
      'SELECT relname, pg_total_relation_size(relid), n_live_tup, n_dead_tup FROM pg_stat_user_tables ORDER BY 1',
    )
    const sum = (column: number): number => found.reduce((all, row) => all + Number(row[column]), 0)
    return {
      bytes: sum(1),
      processBytes: privateBytes(server.pid),
      entries: sum(2),
      dead: sum(3),
      connections: await connections(),
      tables: Object.fromEntries(found.map(([name, bytes]) => [String(name), Number(bytes)])),
    }
  }
  return {
    url: server.url,
    pid: server.pid,
    version: `PostgreSQL ${(await one('SHOW server_version')).split(' ')[0]}`,

    sample,
    connections,

    async cut(draw: Draw): Promise<string> {
      if (draw.chance(0.3)) {
        await ask(`SELECT pg_terminate_backend(pid) ${SESSIONS}`)
        return 'all sessions'
      }
      const pids = await ask(`SELECT pid ${SESSIONS} ORDER BY backend_start`)
      await ask(`SELECT pg_terminate_backend(${draw.one(pids)[0]})`)
      return 'one session'
    },

    async left(): Promise<Left> {
      const { DistributedLock, RateLimiter } = await load<typeof import('holdfast')>({ dist }, 'index.js')
      const lock = new DistributedLock({ url: server.url })
      const rate = new RateLimiter({ url: server.url, limits: { limit: 1_000, periodSeconds: 0.1 } })
      for (let call = 0; call < SWEEPING_CALLS && (await rows()).length > 0; call += 1) {
        await lock.acquire('sweep')
        await lock.release('sweep')
        await rate.consume('sweep')
        await rate.reset('sweep')
      }
      await lock.close()
      await rate.close()
      const wrong = await rows()
      await ask('VACUUM')
      await sleep(VACUUMED_AFTER_MS)
      const { bytes, dead } = await sample()
      return { wrong, stays: [`tables and indexes of ${bytes} bytes after a vacuum, with ${dead} dead rows`] }
    },

    [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
  }
}

/** The statistics of a vacuum are seen by others after a moment. */
const VACUUMED_AFTER_MS = 1_000
