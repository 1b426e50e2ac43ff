import { deflateRawSync } from 'node:zlib'
import pg from 'pg'
import { startPostgres } from '../../../test/harness/servers.ts'
import type { Draw } from '../../draw.ts'
import type { Library } from '../../wire/library.ts'
import { oddText } from '../odd.ts'
import type { RowStore } from './row-store.ts'

/** Other sessions that hold the lock, and whose statements begin with an activity comment of any content. */
export async function openAdvisoryRows(library: Library, given: number | undefined): Promise<RowStore> {
  const server = given === undefined ? await startPostgres() : undefined
  const port = given ?? server?.port ?? 0
  const place = { host: '127.0.0.1', port, user: 'postgres', database: 'postgres' }
  const pool = new pg.Pool({ ...place, max: 4 })
  const others = new pg.Pool({ ...place, max: 20 })
  const driver = library.postgresAdvisoryDriver({ client: pool })
  const lock = new library.DistributedLock({ driver, callTimeoutSeconds: 3 })
  return {
    name: 'advisory',
    clients: [{ driver, lock }],
    url: `postgres+advisory://postgres@127.0.0.1:${port}/postgres`,
    async write(draw, judge, lockName) {
      const key = library.advisoryKey(lockName)
      const comment = commentOf(draw, lockName)
      const isShared = draw.chance(0.3)
      judge.note(`another session with the comment ${JSON.stringify(comment.slice(0, 160))}`)
      const client = await others.connect()
      await client.query(`${comment}SELECT pg_advisory_lock${isShared ? '_shared' : ''}(${key})`)
      return {
        isHeldByOther: !isShared,
        async undo() {
          await client.query('SELECT pg_advisory_unlock_all()')
          client.release()
        },
      }
    },
    async [Symbol.asyncDispose]() {
      await lock.close()
      await driver.close()
      await Promise.all([pool.end(), others.end()])
      await server?.[Symbol.asyncDispose]()
    },
  }
}

function commentOf(draw: Draw, lockName: string): string {
  const entries = JSON.stringify([[lockName, 'c0', 'a holder', 0, 7, 1_700_000_000_000]])
  const text = draw.chance(0.3)
    ? draw.one([
        JSON.stringify([[lockName, 7, 8, 0]]),
        JSON.stringify([[lockName, 'c', { a: 1 }, 0, 'token', 'at']]),
        JSON.stringify([[lockName, 'c', 'h', 0, 1e300, -1e300]]),
        JSON.stringify([[lockName, null, null, 0, -5, 9e15]]),
        `[["${lockName}","c","h",0,1e400,1e400]]`,
        '[null]',
        '[7,"x",{}]',
        '{"length":1}',
        // A few hundred bytes that become many megabytes.
        deflateRawSync(`[${' '.repeat(1_000_000)}]`).toString('base64'),
      ])
    : oddText(draw, entries)
  const safe = text.replaceAll('*', '').replaceAll('\0', '').slice(0, 5_000)
  return draw.chance(0.9) ? `/*holdfast ${safe} */` : `/*holdfast ${safe}*/`
}
