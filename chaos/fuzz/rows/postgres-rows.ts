import { randomBytes } from 'node:crypto'
import pg from 'pg'
import postgres from 'postgres'
import { startPostgres } from '../../../test/harness/servers.ts'
import type { Draw } from '../../draw.ts'
import type { Library } from '../../wire/library.ts'
import { oddText } from '../odd.ts'
import { fill, type RowStore } from './row-store.ts'

/** Rows in the driver's tables, in a schema of its own, with values that no client of Holdfast writes. */
export async function openPostgresRows(library: Library, given: number | undefined): Promise<RowStore> {
  const server = given === undefined ? await startPostgres() : undefined
  const port = given ?? server?.port ?? 0
  const schema = `fuzz_${randomBytes(6).toString('hex')}`
  const place = { host: '127.0.0.1', port, user: 'postgres', database: 'postgres' }
  const pool = new pg.Pool({ ...place, max: 4 })
  const sql = postgres({ ...place, max: 4, onnotice() {} })
  await pool.query(`CREATE SCHEMA ${schema}`)
  const clients = [pool, sql].map((client) => {
    const driver = library.postgresDriver({ client, schema })
    return { driver, lock: new library.DistributedLock({ driver, callTimeoutSeconds: 3 }) }
  })
  await library.migratePostgres({ client: pool, schema })
  return {
    name: 'postgres',
    clients,
    url: `postgres://postgres@127.0.0.1:${port}/postgres?holdfast_schema=${schema}`,
    async write(draw, judge, lockName) {
      const driver = clients[0]?.driver
      if (driver !== undefined && draw.chance(0.7)) await fill(draw, driver, lockName)
      // So that there are rows of rate limits, too.
      const limits = [{ limit: 5, periodMs: 1_000, burst: 5 }]
      if (draw.chance(0.3)) await driver?.consume?.([{ name: lockName, cost: 1, limits }]).catch(() => {})
      for (let count = draw.whole(1, 4); count > 0; count -= 1) {
        const { text, values } = statement(draw, schema, lockName)
        judge.note(`${text} ${JSON.stringify(values).slice(0, 120)}`)
        // A value that the table does not take changes nothing.
        await pool.query(text, values).catch((error: Error) => judge.note(`(${error.message})`))
      }
      return {}
    },
    async [Symbol.asyncDispose]() {
      await Promise.allSettled(clients.map(({ lock }) => lock.close()))
      await Promise.allSettled(clients.map(({ driver }) => driver.close()))
      await pool.query(`DROP SCHEMA ${schema} CASCADE`).catch(() => {})
      await Promise.all([pool.end(), sql.end({ timeout: 1 })])
      await server?.[Symbol.asyncDispose]()
    },
  }
}

interface Statement {
  readonly text: string
  readonly values: (string | null)[]
}

function statement(draw: Draw, schema: string, lockName: string): Statement {
  const table = draw.weighted(
    Object.entries(TABLES).map(([name]) => [name, name === 'distributed_locks' ? 3 : 1] as const),
  )
  const columns = TABLES[table] ?? {}
  const key = table === 'holdfast_rates' ? 'name' : 'lock_name'
  const names = Object.keys(columns)
  if (draw.chance(0.6)) {
    const changed = draw.some(names, draw.whole(1, 3))
    const sets = changed.map((name, at) => `${name} = $${at + 2}::text::${typeOf(columns, name)}`)
    const text = `UPDATE ${schema}.${table} SET ${sets.join(', ')} WHERE ${key} = $1`
    return { text, values: [lockName, ...changed.map((name) => oddValueOf(draw, columns[name] as Column))] }
  }
  const given = draw.some(names, names.length - draw.whole(0, 2))
  const places = given.map((name, at) => `$${at + 2}::text::${typeOf(columns, name)}`)
  const text = `INSERT INTO ${schema}.${table} (${[key, ...given].join(', ')}) VALUES ($1, ${places.join(', ')})`
  return {
    text: `${text} ON CONFLICT DO NOTHING`,
    values: [lockName, ...given.map((name) => oddValueOf(draw, columns[name] as Column))],
  }
}

const typeOf = (columns: Readonly<Record<string, Column>>, name: string): string => columns[name] as string

type Column = 'text' | 'timestamptz' | 'bigint' | 'jsonb' | 'float8' | 'boolean' | 'float8[]'

const TABLES: Readonly<Record<string, Readonly<Record<string, Column>>>> = {
  distributed_locks: {
    ...{
      holder_id: 'text',
      acquired_at: 'timestamptz',
      expires_at: 'timestamptz',
      metadata: 'jsonb',
      claim_id: 'text',
    },
    ...{ fencing_token: 'bigint', mode: 'text', contended: 'boolean', ttl_ms: 'float8' },
  },
  holdfast_leases: {
    ...{ claim_id: 'text', holder_id: 'text', max_permits: 'bigint', permits: 'bigint', fencing_token: 'bigint' },
    ...{ acquired_at: 'timestamptz', expires_at: 'timestamptz', metadata: 'jsonb', ttl_ms: 'float8' },
  },
  holdfast_waiters: {
    ...{ place: 'bigint', claim_id: 'text', holder_id: 'text', mode: 'text', max_permits: 'bigint', permits: 'bigint' },
    ...{ wait_ms: 'float8', metadata: 'jsonb', channel: 'text', waiting_since: 'timestamptz' },
    ...{ expires_at: 'timestamptz', ttl_ms: 'float8' },
  },
  holdfast_rates: { state: 'float8[]', policy: 'bigint', expires_at: 'timestamptz' },
}

const VALUES: Readonly<Record<Exclude<Column, 'text' | 'jsonb'>, readonly string[]>> = {
  timestamptz: [
    ...['infinity', '-infinity', '4714-11-24 00:00:00+00 BC', '294276-12-31 23:59:59+00', '1970-01-01', 'now'],
    ...['9999-12-31', '2999-01-01', '275760-09-14 00:00:00+00'],
  ],
  bigint: ['-1', '0', '1', '9223372036854775807', '-9223372036854775808', '9007199254740993', '1000000'],
  float8: ['-3600000', '0', '1', '3.2e15', '-3.2e15', 'NaN', 'Infinity', '-Infinity', '31536000000', '0.001'],
  boolean: ['true', 'false'],
  'float8[]': ['{}', '{NaN}', '{1,2,3}', '{NULL}', '{Infinity}', '{1,2,3,4,5,6,7,8}', '{-1e300,1e300,NaN,NULL}'],
}

function oddValueOf(draw: Draw, column: Column): string | null {
  if (draw.chance(0.1)) return null
  if (column === 'text')
    return draw.chance(0.4) ? draw.one(['exclusive', 'shared', 'c0', 'c1', 'weird', '']) : textOf(draw, 'c0')
  if (column === 'jsonb') return draw.chance(0.7) ? draw.one(JSONS) : textOf(draw, '{"n":1}')
  return draw.one(VALUES[column])
}

const textOf = (draw: Draw, text: string): string => oddText(draw, text).replaceAll('\0', '')

const JSONS: readonly string[] = [
  ...['[]', '7', '"x"', 'null', 'true', '{}', '{"a":{"b":[1,2,{"c":null}]}}', '{"n":1e308}', '{"n":1e1000}'],
  ...[
    `{"long":"${'x'.repeat(100_000)}"}`,
    `${'['.repeat(500)}${']'.repeat(500)}`,
    '{"__proto__":{"a":1},"constructor":2}',
  ],
]
