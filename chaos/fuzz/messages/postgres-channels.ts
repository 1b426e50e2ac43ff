import { randomBytes } from 'node:crypto'
import pg from 'pg'
import postgres from 'postgres'
import { startPostgres } from '../../../test/harness/servers.ts'
import type { Library } from '../../wire/library.ts'
import { type ChannelStore, until } from './channel.ts'

/** The driver's tables, in a schema of its own. */
export async function openPostgresChannels(library: Library, given: number | undefined): Promise<ChannelStore> {
  const server = given === undefined ? await startPostgres() : undefined
  const port = given ?? server?.port ?? 0
  const schema = `fuzz_${randomBytes(6).toString('hex')}`
  const place = { host: '127.0.0.1', port, user: 'postgres', database: 'postgres' }
  const pool = new pg.Pool({ ...place, max: 4 })
  const sql = postgres({ ...place, max: 4, onnotice() {} })
  const forger = new pg.Client(place)
  await forger.connect()
  await forger.query(`CREATE SCHEMA ${schema}`)
  const open = (client: pg.Pool | postgres.Sql) => {
    const driver = library.postgresDriver({ client, schema })
    return { driver, lock: new library.DistributedLock({ driver }) }
  }
  const [first, second, other] = [open(pool), open(sql), open(pool)]
  await library.migratePostgres({ client: pool, schema })
  return {
    name: 'postgres',
    clients: [first, second],
    other,
    heard: [],
    waiting: (lockName) =>
      until(async () => {
        const find = `SELECT claim_id, channel FROM ${schema}.holdfast_waiters WHERE lock_name = $1`
        const { rows } = await forger.query<{ claim_id: string; channel: string }>(find, [lockName])
        const [row] = rows
        return row && { claimId: row.claim_id, channels: [row.channel, 'holdfast_stolen'] }
      }),
    async send(channel, message) {
      // The server takes no more than this, and nothing that is no text.
      const payload = message.toString('utf8').replaceAll('\0', '').slice(0, 1_900)
      await forger.query('SELECT pg_notify($1, $2)', [channel, payload]).catch(() => {})
    },
    async [Symbol.asyncDispose]() {
      const all = [first, second, other]
      await Promise.allSettled(all.map(({ lock }) => lock.close()))
      await Promise.allSettled(all.map(({ driver }) => driver.close()))
      await forger.query(`DROP SCHEMA ${schema} CASCADE`).catch(() => {})
      await Promise.all([forger.end(), pool.end(), sql.end({ timeout: 1 })])
      await server?.[Symbol.asyncDispose]()
    },
  }
}
