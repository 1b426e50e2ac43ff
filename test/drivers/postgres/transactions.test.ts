import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { PrismaPg } from '@prisma/adapter-pg'
import { drizzle } from 'drizzle-orm/node-postgres'
import { drizzle as drizzleOverPostgres } from 'drizzle-orm/postgres-js'
import knex from 'knex'
import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'
import postgres from 'postgres'
import { beforeAll, describe, inject, it } from 'vitest'
import { PrismaClient } from '../../../examples/postgres/prisma-client.ts'
import {
  migratePostgres,
  type PostgresTransaction,
  postgresFence,
  StaleTokenError,
} from '../../../src/drivers/postgres.ts'
import { lockInTransaction, tryLockInTransaction } from '../../../src/drivers/postgres-advisory.ts'

const url = inject('servers').postgres ?? ''

interface Opened {
  /** The object that transactions are begun from. */
  readonly outside: unknown
  transaction<T>(work: (transaction: PostgresTransaction) => Promise<T>): Promise<T>
  end(): Promise<unknown>
}

const clients: Record<string, () => Opened> = {
  'drizzle over pg'() {
    const pool = new pg.Pool({ connectionString: url })
    const db = drizzle(pool)
    return { outside: db, transaction: (work) => db.transaction(work), end: () => pool.end() }
  },
  'drizzle over postgres'() {
    const sql = postgres(url, { onnotice: () => {} })
    const db = drizzleOverPostgres(sql)
    return { outside: db, transaction: (work) => db.transaction(work), end: () => sql.end() }
  },
  knex() {
    const db = knex({ client: 'pg', connection: url })
    return { outside: db, transaction: (work) => db.transaction(work), end: () => db.destroy() }
  },
  kysely() {
    const db = new Kysely({ dialect: new PostgresDialect({ pool: new pg.Pool({ connectionString: url }) }) })
    return { outside: db, transaction: (work) => db.transaction().execute(work), end: () => db.destroy() }
  },
  pg() {
    const pool = new pg.Pool({ connectionString: url })
    const transaction = async <T>(work: (transaction: PostgresTransaction) => Promise<T>): Promise<T> => {
      const client = await pool.connect()
      try {
        await client.query('BEGIN')
        const result = await work(client)
        await client.query('COMMIT')
        return result
      } catch (error) {
        await client.query('ROLLBACK')
        throw error
      } finally {
        client.release()
      }
    }
    return { outside: pool, transaction, end: () => pool.end() }
  },
  postgres() {
    const sql = postgres(url, { onnotice: () => {} })
    // It returns what the work returned. Its type does not say so, because that could be a list of queries.
    return { outside: sql, transaction: (work) => sql.begin(work) as never, end: () => sql.end() }
  },
  prisma() {
    const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: url }) })
    return { outside: prisma, transaction: (work) => prisma.$transaction(work), end: () => prisma.$disconnect() }
  },
}

beforeAll(async () => {
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  await migratePostgres({ client: pool })
  await pool.end()
})

describe.concurrent.each(Object.entries(clients))('the caller’s own transaction, %s', (_, open) => {
  it('the fencing guard refuses a smaller token with its own error, with every wrapping of PostgreSQL’s', async () => {
    const db = open()
    // With characters that a query builder might take as a placeholder.
    const resource = `account? :x $1 ${randomBytes(6).toString('hex')}`
    await db.transaction((tx) => postgresFence(tx, resource, 7))
    const stale = db.transaction((tx) => postgresFence(tx, resource, 6))
    await assert.rejects(stale, (error) => error instanceof StaleTokenError && error.fencingToken === 6)
    await db.transaction((tx) => postgresFence(tx, resource, 7))
    await db.end()
  })

  it('shared locks do not exclude each other, but exclude an exclusive one', async () => {
    const db = open()
    const name = `shared:${randomBytes(6).toString('hex')}`
    await db.transaction(async (first) => {
      await lockInTransaction(first, name, { shared: true })
      const next = (shared: boolean) => db.transaction((tx) => tryLockInTransaction(tx, name, { shared }))
      assert.equal(await next(true), true)
      assert.equal(await next(false), false)
      const refused = { code: 'NOT_ACQUIRED', lockName: name, message: /is held by another client/ }
      await assert.rejects(
        db.transaction((tx) => lockInTransaction(tx, name)),
        refused,
      )
      const late = { ...refused, message: /waited 0\.05 s, which has aborted the transaction/ }
      await assert.rejects(
        db.transaction((tx) => lockInTransaction(tx, name, { blockingTimeoutSeconds: 0.05 })),
        late,
      )
    })
    await db.transaction((tx) => lockInTransaction(tx, name, { blocking: true }))
    await db.end()
  })

  it('without an open transaction it is an error: the lock would be free again at once', async () => {
    const db = open()
    const outside = db.outside as PostgresTransaction
    const refused = { code: 'INVALID_ARGUMENT', message: /transaction must be an open transaction/ }
    await assert.rejects(lockInTransaction(outside, 'a'), refused)
    await assert.rejects(postgresFence(outside, 'a', 1), refused)
    await db.end()
  })
})

it('a client of pg before its BEGIN or after its COMMIT is no open transaction', async () => {
  const client = new pg.Client(url)
  await client.connect()
  const refused = { code: 'INVALID_ARGUMENT', message: /after BEGIN/ }
  await assert.rejects(lockInTransaction(client, 'a'), refused)
  await client.query('BEGIN')
  await lockInTransaction(client, 'a')
  await client.query('COMMIT')
  await assert.rejects(postgresFence(client, 'a', 1), refused)
  await client.end()
})

it('options of a wrong type are refused by name, before anything is sent', async () => {
  const client = { query: () => assert.fail('sent') } as unknown as PostgresTransaction
  for (const options of [{ shared: 'no' }, { blocking: 0 }, { blocking: null }, null, 'wait']) {
    await assert.rejects(lockInTransaction(client, 'a', options as never), {
      code: 'INVALID_ARGUMENT',
      message: /^(shared|blocking|options) must be/,
    })
  }
})

it('an argument that is no transaction is refused by name, before anything is sent', async () => {
  for (const stranger of [{ commit() {} }, null, undefined, 'BEGIN']) {
    const refused = { code: 'INVALID_ARGUMENT', message: /transaction/ }
    await assert.rejects(lockInTransaction(stranger as unknown as PostgresTransaction, 'a'), refused)
  }
})
