// A process that slept through the end of its lease wakes up and writes. PostgreSQL itself refuses the write.
// DATABASE_URL=postgres://… npm run example postgres/fencing
import { DistributedLock } from 'holdfast'
import { openPostgres, postgresFence, StaleTokenError } from 'holdfast/drivers/postgres'
import pg from 'pg'

const url = process.env['DATABASE_URL'] ?? 'postgres://postgres@127.0.0.1:5432/postgres'
const pool = new pg.Pool({ connectionString: url })
await pool.query('CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL)')
await pool.query(`INSERT INTO accounts VALUES ('7', 100) ON CONFLICT (id) DO UPDATE SET balance = 100`)

const sleeper = new DistributedLock({ driver: await openPostgres(url) })
const rival = new DistributedLock({ driver: await openPostgres(url) })

// It takes the lock, reads the balance, and then the machine is suspended …
const lost = await sleeper.hold('account:7', { timeoutSeconds: 1, heartbeat: false })
const before = await balance()

// … long enough for somebody else to take over.
const lease = await rival.hold('account:7', { blocking: true })
await write(lease.fencingToken, before - 30)
console.log(`the rival wrote ${await balance()}`)

// It wakes up. Whether or not it looks at `held` first, its write cannot go through.
try {
  await write(lost.fencingToken, before - 50)
} catch (error) {
  if (!(error instanceof StaleTokenError)) throw error
  console.log(`the sleeper was refused: ${error.code}`)
}
console.log(`the balance is ${await balance()}`)

await lease.release()
for (const lock of [sleeper, rival]) await lock.close()
await pool.end()

async function write(fencingToken: number, newBalance: number): Promise<void> {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    await postgresFence(client, 'account:7', fencingToken)
    await client.query(`UPDATE accounts SET balance = $1 WHERE id = '7'`, [newBalance])
    await client.query('COMMIT')
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  } finally {
    client.release()
  }
}

async function balance(): Promise<number> {
  const { rows } = await pool.query<{ balance: number }>(`SELECT balance FROM accounts WHERE id = '7'`)
  return rows[0]?.balance ?? 0
}
