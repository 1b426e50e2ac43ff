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
import { PrismaClient } from '../../examples/postgres/prisma-client.ts'
import {
  migratePostgres,
  type PostgresTransaction,
  postgresFence,
  StaleTokenError,
} from '../../src/drivers/postgres.ts'
import { lockInTransaction } from '../../src/drivers/postgres-advisory.ts'

const url = inject('servers').postgres ?? ''

interface Opened {
  transaction<T>(work: (transaction: PostgresTransaction) => Promise<T>): Promise<T>
  end(): Promise<unknown>
}

const clients: Record<string, () => Opened> = {
  'drizzle over pg'() {
    const pool = new pg.Pool({ connectionString: url })
    const db = drizzle(pool)
    return { transaction: (work) => db.transaction(work), end: () => pool.end() }
  },
  'drizzle over postgres'() {
    const sql = postgres(url, { onnotice: () => {} })
    const db = drizzleOverPostgres(sql)
    return { transaction: (work) => db.transaction(work), end: () => sql.end() }
  },
  knex() {
    const db = knex({ client: 'pg', connection: url })
    return { transaction: (work) => db.transaction(work), end: () => db.destroy() }
  },
  kysely() {
    const db = new Kysely({ dialect: new PostgresDialect({ pool: new pg.Pool({ connectionString: url }) }) })
    return { transaction: (work) => db.transaction().execute(work), end: () => db.destroy() }
  },
  prisma() {
    const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: url }) })
    return { transaction: (work) => prisma.$transaction(work), end: () => prisma.$disconnect() }
  },
}

beforeAll(async () => {
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  await migratePostgres({ client: pool })
  await pool.end()
})

describe.concurrent.each(Object.entries(clients))('the caller’s own transaction, %s', (_, open) => {
  it('the fencing guard refuses a smaller token with its own error, however the client wraps PostgreSQL’s', async () => {
    const db = open()
    // Whatever a query builder might take for a placeholder of its own.
    const resource = `account? :x $1 ${randomBytes(6).toString('hex')}`
    await db.transaction((tx) => postgresFence(tx, resource, 7))
    const stale = db.transaction((tx) => postgresFence(tx, resource, 6))
    await assert.rejects(stale, (error) => error instanceof StaleTokenError && error.fencingToken === 6)
    await db.transaction((tx) => postgresFence(tx, resource, 7))
    await db.end()
  })

  it('shared locks stand beside each other, and exclude one that is not', async () => {
    const db = open()
    const name = `shared:${randomBytes(6).toString('hex')}`
    await db.transaction(async (first) => {
      assert.equal(await lockInTransaction(first, name, { shared: true }), true)
      const next = (shared: boolean) => db.transaction((tx) => lockInTransaction(tx, name, { shared, wait: false }))
      assert.equal(await next(true), true)
      assert.equal(await next(false), false)
    })
    await db.end()
  })
})

it('something else than a transaction is refused, by name, before anything is sent', async () => {
  const stranger = { commit() {} } as unknown as PostgresTransaction
  await assert.rejects(lockInTransaction(stranger, 'a'), { code: 'INVALID_ARGUMENT', message: /transaction/ })
})
