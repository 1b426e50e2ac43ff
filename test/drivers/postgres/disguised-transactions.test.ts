import assert from 'node:assert/strict'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import { migratePostgres, type PostgresTransaction, postgresFence } from '../../../src/drivers/postgres.ts'
import { advisoryKey, lockInTransaction, tryLockInTransaction } from '../../../src/drivers/postgres-advisory.ts'
import { unique } from '../../harness/postgres-context.ts'
import { startPgBouncer } from '../../harness/servers.ts'

const url = inject('servers').postgres ?? ''

let pool: pg.Pool
beforeAll(async () => {
  pool = new pg.Pool({ connectionString: url, max: 3 })
  await migratePostgres({ client: pool })
})
afterAll(() => pool.end())

type Send = (text: string, values?: unknown[]) => Promise<pg.QueryResult>

/** What an application can have that looks like a transaction, and sends each statement in one of its own. */
const disguised: Record<string, (send: Send) => object> = {
  'a function around a pool, as the guide of pg recommends': (send) => ({ query: send }),
  'an EntityManager or a Database, whose query returns the rows': (send) => ({
    query: async (text: string, values: unknown[]) => (await send(text, values)).rows,
    transaction: () => assert.fail('called'),
  }),
  'an object that says that it is in a transaction': (send) => ({
    query: send,
    isTransaction: true,
    rollback: () => assert.fail('called'),
    getTransactionStatus: () => 'T',
  }),
  'an object that looks like the transaction of postgres': (send) => ({
    unsafe: async (text: string, values: unknown[]) => (await send(text, values)).rows,
    savepoint: () => assert.fail('called'),
  }),
  'an object that looks like the transaction of Kysely': (send) => ({
    executeQuery: ({ sql, parameters }: { sql: string; parameters: unknown[] }) => send(sql, parameters),
    isTransaction: true,
  }),
  'an object that looks like the transaction of Prisma': (send) => ({
    $queryRawUnsafe: async (text: string, ...values: unknown[]) => (await send(text, values)).rows,
  }),
  'an object that looks like the transaction of Drizzle': (send) => ({
    rollback: () => assert.fail('called'),
    _: {
      session: {
        prepareQuery: ({ sql, params }: { sql: string; params: unknown[] }) => ({ execute: () => send(sql, params) }),
      },
    },
  }),
}

describe('failure 76: what only looks like a transaction is refused, and nothing is locked', () => {
  for (const [what, disguise] of Object.entries(disguised)) {
    it(what, () => refused(disguise((text, values) => pool.query(text, values))))
  }

  it('a pool that gives the same connection each time', async () => {
    const one = new pg.Pool({ connectionString: url, max: 1 })
    await refused({ query: (text: string, values: unknown[]) => one.query(text, values) })
    await one.end()
  })

  it('a client without an open transaction that does not say so', async () => {
    const client = new pg.Client(url)
    await client.connect()
    await refused({ query: (text: string, values: unknown[]) => client.query(text, values) })
    await client.query('BEGIN')
    await client.query('COMMIT')
    await refused({ query: (text: string, values: unknown[]) => client.query(text, values) })
    await client.end()
  })

  it('an object that puts each statement into a transaction', async () => {
    const query = async (text: string, values: unknown[]) => {
      const client = await pool.connect()
      try {
        await client.query(`BEGIN; SET LOCAL application_name = 'tenant:7'`)
        const result = await client.query(text, values)
        await client.query('COMMIT')
        return result
      } finally {
        client.release()
      }
    }
    await refused({ query })
  })

  it('an object that prepares its statements', () => {
    let statements = 0
    const query = (text: string, values: unknown[]) => {
      statements += 1
      return pool.query({ name: `disguised_${statements}`, text, values })
    }
    return refused({ query })
  })

  it('a reserved connection of postgres', async () => {
    const sql = postgres(url, { onnotice: () => {} })
    const reserved = await sql.reserve()
    await refused(reserved)
    await reserved`BEGIN`
    await accepted(reserved)
    await reserved`ROLLBACK`
    await refused(reserved)
    reserved.release()
    await sql.end()
  })

  it('a pool behind PgBouncer in transaction mode', async () => {
    await using pgbouncer = await startPgBouncer({ port: Number(new URL(url).port) } as never)
    const pooled = new pg.Pool({ connectionString: pgbouncer.url, max: 4 })
    await refused({ query: (text: string, values: unknown[]) => pooled.query(text, values) })
    const client = await pooled.connect()
    await client.query('BEGIN')
    await accepted(client)
    await client.query('COMMIT')
    client.release()
    await pooled.end()
  })

  it('it is refused at once, although another session has the lock', async () => {
    const holder = await pool.connect()
    await holder.query('BEGIN')
    const name = unique('held')
    await lockInTransaction(holder, name)
    await assert.rejects(lockInTransaction({ query: (text, values) => pool.query(text, values) }, name), REFUSED)
    await holder.query('ROLLBACK')
    holder.release()
  })
})

describe('a transaction that has just begun is one', () => {
  const begins: Record<string, (client: pg.PoolClient) => Promise<unknown>> = {
    'with a BEGIN that is still on its way': async (client) => void client.query('BEGIN'),
    'with a BEGIN in a text with other statements': (client) => client.query('SELECT 1; BEGIN; SELECT 2'),
    'that only reads': (client) => client.query('BEGIN READ ONLY'),
    'that is serializable, read only and deferrable': (client) =>
      client.query('BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE'),
    'that has written': async (client) => {
      await client.query('BEGIN')
      await client.query('SELECT pg_current_xact_id()')
    },
    'inside a savepoint': (client) => client.query('BEGIN; SAVEPOINT a'),
    'after a savepoint was rolled back': async (client) => {
      await client.query('BEGIN; SAVEPOINT a')
      await accepted(client)
      await client.query('ROLLBACK TO a')
    },
    'after a transaction in which it was asked before': async (client) => {
      await client.query('BEGIN')
      await accepted(client)
      await client.query('COMMIT; BEGIN')
    },
  }
  for (const [what, begin] of Object.entries(begins)) {
    it(what, async () => {
      const client = await pool.connect()
      // pg warns of a query that is sent while another one is in flight.
      await begin(client)
      await accepted(client)
      await client.query('ROLLBACK')
      client.release()
    })
  }

  it('and a second lock in it is one statement', async () => {
    const client = await pool.connect()
    const sent: string[] = []
    const transaction = {
      query(text: string, values: unknown[]) {
        sent.push(text)
        return client.query(text, values)
      },
    }
    await client.query('BEGIN')
    await lockInTransaction(transaction, unique('first'))
    assert.equal(sent.length, 2)
    await lockInTransaction(transaction, unique('second'))
    assert.equal(sent.length, 3)
    await Promise.all([1, 2, 3].map(() => lockInTransaction(transaction, unique('third'))))
    await client.query('ROLLBACK')
    client.release()
  })

  it('and its lock is held until its end, and never twice', async () => {
    const [first, second] = [await pool.connect(), await pool.connect()]
    const name = unique('once')
    await first.query('BEGIN')
    await second.query('BEGIN')
    await lockInTransaction(first, name)
    assert.equal(await tryLockInTransaction(second, name), false)
    assert.equal(await tryLockInTransaction(second, name, { shared: true }), false)
    await first.query('COMMIT')
    assert.equal(await tryLockInTransaction(second, name, { shared: true }), true)
    await second.query('COMMIT')
    first.release()
    second.release()
  })
})

const REFUSED = { code: 'INVALID_ARGUMENT', message: /transaction must be an open transaction/ }

async function refused(transaction: object): Promise<void> {
  const name = unique('disguised')
  const disguise = transaction as PostgresTransaction
  for (const options of [{}, { blocking: true }, { shared: true }, { shared: true, blocking: true }]) {
    await assert.rejects(lockInTransaction(disguise, name, options), REFUSED)
  }
  await assert.rejects(postgresFence(disguise, name, 7), REFUSED)
  await assert.rejects(postgresFence(disguise).reset(name), REFUSED)
  // Nothing was written: a smaller token would be refused otherwise.
  assert.equal((await pool.query('SELECT FROM holdfast_fences WHERE resource = $1', [name])).rowCount, 0)
}

async function accepted(transaction: unknown): Promise<void> {
  const name = unique('open')
  await lockInTransaction(transaction as PostgresTransaction, name)
  const text = `SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = $1`
  assert.equal((await pool.query(text, [advisoryKey(name)])).rowCount, 1)
}
