// A lock that lasts exactly as long as your own transaction, with Kysely.
// DATABASE_URL=postgres://… npm run example postgres/transaction-kysely
import { lockInTransaction, tryLockInTransaction } from 'holdfast/drivers/postgres-advisory'
import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'

const url = process.env['DATABASE_URL'] ?? 'postgres://postgres@127.0.0.1:5432/postgres'
const db = new Kysely({ dialect: new PostgresDialect({ pool: new pg.Pool({ connectionString: url }) }) })

await db.transaction().execute(async (mine) => {
  await lockInTransaction(mine, 'invoice:2026')
  console.log('acquired')
  console.log(`another transaction meanwhile: ${await tryIt()}`)
})
console.log(`after the commit: ${await tryIt()}`)

await db
  .transaction()
  .execute(async (mine) => {
    await lockInTransaction(mine, 'invoice:2026')
    throw new Error('no such customer')
  })
  .catch((error: Error) => console.log(`rolled back: ${error.message}`))
console.log(`after the rollback: ${await tryIt()}`)
await db.destroy()

/** Returns false if another transaction holds the lock. */
function tryIt(): Promise<boolean> {
  return db.transaction().execute((another) => tryLockInTransaction(another, 'invoice:2026'))
}
