// A lock that lasts exactly as long as your own transaction, through pg and through postgres.
// DATABASE_URL=postgres://… node transaction.js
import { lockInTransaction } from 'holdfast/drivers/postgres-advisory'
import pg from 'pg'
import postgres from 'postgres'

const url = process.env['DATABASE_URL'] ?? 'postgres://postgres@127.0.0.1:5432/postgres'

const pool = new pg.Pool({ connectionString: url })
const client = await pool.connect()
await client.query('BEGIN')
console.log(`pg has it: ${await lockInTransaction(client, 'invoice:2026')}`)

const sql = postgres(url)
const tryIt = (): Promise<boolean> =>
  sql.begin((tx) => lockInTransaction(tx, 'invoice:2026', { wait: false })) as Promise<boolean>
console.log(`postgres gets it meanwhile: ${await tryIt()}`)
await client.query('COMMIT')
console.log(`postgres gets it after the commit: ${await tryIt()}`)

client.release()
await pool.end()
await sql.end()
