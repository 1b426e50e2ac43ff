import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import { migratePostgres, type PostgresClient, postgresDriver } from '../../../src/drivers/postgres.ts'
import { DistributedLock } from '../../../src/primitives/lock/distributed-lock.ts'
import { WebLocks } from '../../../src/primitives/web-locks/web-locks.ts'
import { gate } from '../../harness/gate.ts'
import { claimOn, granted, unique, until, waitersOn } from '../../harness/postgres-context.ts'

const url = inject('servers').postgres ?? ''
const id = randomBytes(6).toString('hex')
const [schema, stranger] = [`trust_${id}`, `stranger_${id}`]

let pool: pg.Pool
/** A role that may connect, and so LISTEN and NOTIFY on any channel, and may read every table. */
let attacker: pg.Pool

beforeAll(async () => {
  pool = new pg.Pool({ connectionString: url, max: 6 })
  await migratePostgres({ client: pool, schema })
  await pool.query(`CREATE ROLE ${stranger} LOGIN; GRANT USAGE ON SCHEMA ${schema} TO ${stranger};
    GRANT SELECT ON ALL TABLES IN SCHEMA ${schema} TO ${stranger}`)
  attacker = new pg.Pool({ connectionString: url.replace('postgres@', `${stranger}@`), max: 2 })
})
afterAll(async () => {
  await attacker.end()
  await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE; DROP ROLE ${stranger}`)
  await pool.end()
})

describe.concurrent('postgres: a role that may connect and read, and nothing else', () => {
  const clients: Record<string, () => { client: PostgresClient; end(): Promise<void> }> = {
    pg: () => ({ client: pool, end: async () => {} }),
    postgres() {
      const client = postgres(url, { max: 2, onnotice: () => {} })
      return { client, end: () => client.end() }
    },
  }

  for (const [name, open] of Object.entries(clients)) {
    it(`failure 38: cannot make a waiter believe that it holds the lock, through ${name}`, async () => {
      const { client, end } = open()
      const lockName = unique('forged')
      const holderDriver = postgresDriver({ client: pool, schema })
      const holder = claimOn(lockName)
      await granted(holderDriver, holder)
      const driver = postgresDriver({ client, schema })
      const lock = new DistributedLock({ driver })
      const waiting = lock.hold(lockName, { blockingTimeoutSeconds: 30 })
      await until('the waiter', async () => (await waitersOn(holderDriver, lockName)) === 1)
      const { channel, call, claim_id } = await listeningWaiterOn(lockName)
      for (const grant of await forgedGrants(claim_id, call)) {
        await attacker.query('SELECT pg_notify($1, $2)', [channel, JSON.stringify([grant])])
      }
      // It arrives after the forged ones: the server delivers in the order of commits.
      assert.deepEqual(await holderDriver.release([holder]), [true])
      const lease = await waiting
      const [held] = (await holderDriver.inspect({ lockName })).leases
      assert.equal(lease.fencingToken, held?.fencingToken)
      assert.ok(lease.fencingToken < Number.MAX_SAFE_INTEGER)
      await lock.close()
      await Promise.all([driver.close(), holderDriver.close()])
      await end()
    })
  }

  it('failure 38: cannot make a holder believe that its lock was force-released, nor cause many queries', async () => {
    const lockName = unique('forced')
    const { client, texts } = countedPool()
    const driver = postgresDriver({ client, schema })
    const web = new WebLocks({ driver, prefix: '' })
    const [taken, ended] = [gate(), gate()]
    let signal: AbortSignal | undefined
    let renewals = 0
    web.on('renewed', () => {
      renewals += 1
    })
    const request = web.locks.request(lockName, async (lock) => {
      signal = lock?.signal
      taken.open()
      await ended.opened
      return 'done'
    })
    await taken.opened
    // A process that only holds a lock does not listen. This one also waits for another.
    const [otherDriver, other] = [postgresDriver({ client: pool, schema }), claimOn(unique('other'))]
    await granted(otherDriver, other)
    const waiting = web.locks.request(other.lockName, () => 'its turn')
    await until('it to listen', () => texts.some((text) => text.startsWith('LISTEN')))
    await until('the greeting', () => texts.some((text) => text.includes('pg_notify')))
    const held = `SELECT claim_id FROM ${schema}.distributed_locks WHERE lock_name = $1`
    const { claim_id } = (await attacker.query(held, [lockName])).rows[0]
    const startedMs = performance.now()
    texts.length = 0
    const forged = JSON.stringify({ lost: ['stranger', claim_id], by: 'eve' })
    for (let sent = 0; sent < 2_000; sent += 100) {
      await attacker.query(`SELECT pg_notify('holdfast_stolen', '${forged}'); COMMIT; `.repeat(100))
    }
    await until('the holder to ask', () => renewals > 0)
    assert.equal(signal?.aborted, false, 'it believed a forged report')
    // Core bounds the renewals that hints cause.
    const most = 20 + (performance.now() - startedMs) / 50 + 10
    assert.ok(texts.length <= most, `${texts.length} queries for 2,000 messages`)
    ended.open()
    assert.equal(await request, 'done')
    await otherDriver.release([other])
    assert.equal(await waiting, 'its turn')
    await web.close()
    await Promise.all([driver.close(), otherDriver.close()])
    await client.end()
  })

  it('failure 38: a flood of forged messages costs a bounded number of queries, and no wake-up', async () => {
    const lockName = unique('flood')
    const holderDriver = postgresDriver({ client: pool, schema })
    const holder = claimOn(lockName)
    await granted(holderDriver, holder)
    const { client, texts } = countedPool()
    const driver = postgresDriver({ client, schema })
    const lock = new DistributedLock({ driver, waiterTtlSeconds: 60 })
    const waiting = lock.hold(lockName, { blockingTimeoutSeconds: 60 })
    await until('the waiter', async () => (await waitersOn(holderDriver, lockName)) === 1)
    const { channel, call, claim_id } = await listeningWaiterOn(lockName)
    texts.length = 0
    for (let sent = 0; sent < 3_000; sent += 100) {
      // Each in a transaction of its own, or the server would drop the duplicates.
      const messages = Array.from({ length: 100 }, (_, index) => {
        const claimId = index % 4 === 0 ? claim_id : `stranger:${sent + index}`
        const terms = index % 8 < 4 ? [`${sent + index}`, '1', '60000'] : ['', '', '']
        return JSON.stringify([[claimId, ...terms, proofOf('', call, terms, claimId)]])
      })
      await attacker.query(messages.map((message) => `SELECT pg_notify('${channel}', '${message}'); COMMIT;`).join(' '))
    }
    assert.deepEqual(await holderDriver.release([holder]), [true])
    const lease = await waiting
    // The grant in the message is enough: nothing is asked. A ping may fall into it.
    const asked = texts.filter((text) => !text.includes('holdfast_key'))
    assert.deepEqual(asked, [])
    assert.ok(lease.held)
    await lock.close()
    await Promise.all([driver.close(), holderDriver.close()])
    await client.end()
  })
})

/** A pool that records what it sends, also over the connection that listens. */
function countedPool(): { client: pg.Pool; texts: string[] } {
  const texts: string[] = []
  class Counted extends pg.Client {
    override query(...args: unknown[]): never {
      texts.push((args[0] as { text?: string }).text ?? String(args[0]))
      return super.query(...(args as [string])) as never
    }
  }
  const client = new pg.Pool({ connectionString: url, max: 4 })
  Object.assign(client, { Client: Counted })
  return { client, texts }
}

/** The waiter on a name, as a role sees it that may read the tables, once its process listens. */
async function listeningWaiterOn(lockName: string): Promise<Waiter> {
  const text = `SELECT split_part(channel, ':', 1) AS channel, split_part(channel, ':', 2) AS call, claim_id
    FROM ${schema}.holdfast_waiters WHERE lock_name = $1`
  const read = async (): Promise<Waiter> => (await attacker.query(text, [lockName])).rows[0]
  const { channel, call } = await read()
  await until('its process to listen', async () => {
    const listening = `SELECT FROM pg_stat_activity WHERE starts_with(query, $1)`
    return (await pool.query(listening, [`LISTEN "${channel}"`])).rowCount
  })
  // It asks once more when it listens. Before that, it may poll a few times.
  let last = call
  for (let isSame = false; !isSame; ) {
    await sleep(500) // for a poll that may come
    const { call: next } = await read()
    isSame = next === last && next !== call
    last = next
  }
  return read()
}

interface Waiter {
  readonly channel: string
  readonly call: string
  readonly claim_id: string
}

/** Grants of this moment, for ten minutes, with the largest possible token, and wake-ups. */
async function forgedGrants(claimId: string, call: string): Promise<unknown[]> {
  await assert.rejects(attacker.query(`SELECT last_value FROM ${schema}.holdfast_key_1`), /permission denied/)
  assert.deepEqual((await attacker.query(`SELECT ${schema}.holdfast_key() AS key`)).rows, [{ key: null }])
  const [token, ttlMs, madeAtMs] = [Number.MAX_SAFE_INTEGER, 600_000, Date.now() + 60_000]
  const terms = [`${token}`, `${madeAtMs}`, `${ttlMs}`]
  const keys = ['', 'null', 'undefined', call]
  return [
    ...keys.map((key) => [claimId, ...terms, proofOf(key, call, terms, claimId)]),
    ...keys.map((key) => [claimId, '', '', '', proofOf(key, call, ['', '', ''], claimId)]),
    [claimId, ...terms, ''],
    [claimId, token, madeAtMs, ttlMs, null],
    ['granted', claimId, token, ttlMs, madeAtMs],
  ]
}

const proofOf = (key: string, call: string, terms: readonly string[], claimId: string): string =>
  createHash('sha256')
    .update([key, call, ...terms, claimId, key].join(' '))
    .digest('hex')
