// A process that was suspended past the end of its lease continues and writes. PostgreSQL itself rejects the write.
// DATABASE_URL=postgres://… npm run example postgres/fencing
import { DistributedLock, type Lease } from 'holdfast'
import { openPostgres, postgresFence, StaleTokenError } from 'holdfast/drivers/postgres'
import pg from 'pg'

const url = process.env['DATABASE_URL'] ?? 'postgres://postgres@127.0.0.1:5432/postgres'
const pool = new pg.Pool({ connectionString: url })
await pool.query('CREATE TABLE IF NOT EXISTS accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL)')
await pool.query(`INSERT INTO accounts VALUES ('7', 100) ON CONFLICT (id) DO UPDATE SET balance = 100`)

const sleeper = new DistributedLock({ driver: await openPostgres(url) })
const rival = new DistributedLock({ driver: await openPostgres(url) })

// It acquires the lock and reads the balance, and then its machine is suspended …
const lost = await sleeper.hold('account:7', { timeoutSeconds: 1, heartbeat: false })
const seen = await inTransaction(lost, readBalance)

// … long enough for another process to take over.
const lease = await rival.hold('account:7', { blocking: true })
await inTransaction(lease, async (client) => writeBalance(client, (await readBalance(client)) - 30))
console.log(`the rival wrote ${await balance()}`)

// It continues. Its write is rejected, whether or not it checks `held` first.
try {
  await inTransaction(lost, (client) => writeBalance(client, seen - 50))
} catch (error) {
  if (!(error instanceof StaleTokenError)) throw error
  console.log(`the sleeper was rejected: ${error.code}`)
}
console.log(`the balance is ${await balance()}`)

await lease.release()
for (const lock of [sleeper, rival]) await lock.close()
await pool.end()

/**
 * Presents the token before the read, not only before the write. Otherwise an older holder could write in between, and
 * its update would be lost.
 */
async function inTransaction<T>(holder: Lease, work: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    await postgresFence(client, 'account:7', holder)
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

async function writeBalance(client: pg.PoolClient, newBalance: number): Promise<void> {
  await client.query(`UPDATE accounts SET balance = $1 WHERE id = '7'`, [newBalance])
}

async function readBalance(client: pg.Pool | pg.PoolClient): Promise<number> {
  const { rows } = await client.query<{ balance: number }>(`SELECT balance FROM accounts WHERE id = '7'`)
  return rows[0]?.balance ?? 0
}

/** For the output of this example, without a token. */
async function balance(): Promise<number> {
  return readBalance(pool)
}
