// A lock that lasts exactly as long as your own transaction, with postgres.
// DATABASE_URL=postgres://… npm run example postgres/transaction-postgres
import { lockInTransaction, tryLockInTransaction } from 'holdfast/drivers/postgres-advisory'
import postgres from 'postgres'

const url = process.env['DATABASE_URL'] ?? 'postgres://postgres@127.0.0.1:5432/postgres'
const sql = postgres(url)

await sql.begin(async (mine) => {
  await lockInTransaction(mine, 'invoice:2026')
  console.log('acquired')
  console.log(`another transaction meanwhile: ${await tryIt()}`)
})
console.log(`after the commit: ${await tryIt()}`)

await sql
  .begin(async (mine) => {
    await lockInTransaction(mine, 'invoice:2026')
    throw new Error('no such customer')
  })
  .catch((error: Error) => console.log(`rolled back: ${error.message}`))
console.log(`after the rollback: ${await tryIt()}`)
await sql.end()

/** Returns false if another transaction holds the lock. */
function tryIt(): Promise<boolean> {
  return sql.begin((another) => tryLockInTransaction(another, 'invoice:2026'))
}
