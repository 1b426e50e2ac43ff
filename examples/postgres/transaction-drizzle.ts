// A lock that lasts exactly as long as your own transaction, with Drizzle.
// DATABASE_URL=postgres://… npm run example postgres/transaction-drizzle

import { drizzle } from 'drizzle-orm/node-postgres'
import { lockInTransaction, tryLockInTransaction } from 'holdfast/drivers/postgres-advisory'
import pg from 'pg'

const url = process.env['DATABASE_URL'] ?? 'postgres://postgres@127.0.0.1:5432/postgres'
const pool = new pg.Pool({ connectionString: url })
const db = drizzle(pool)

await db.transaction(async (mine) => {
  await lockInTransaction(mine, 'invoice:2026')
  console.log('acquired')
  console.log(`another transaction meanwhile: ${await tryIt()}`)
})
console.log(`after the commit: ${await tryIt()}`)

await db
  .transaction(async (mine) => {
    await lockInTransaction(mine, 'invoice:2026')
    throw new Error('no such customer')
  })
  .catch((error: Error) => console.log(`rolled back: ${error.message}`))
console.log(`after the rollback: ${await tryIt()}`)
await pool.end()

/** Returns false if another transaction holds the lock. */
function tryIt(): Promise<boolean> {
  return db.transaction((another) => tryLockInTransaction(another, 'invoice:2026'))
}
