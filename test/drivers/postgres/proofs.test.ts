import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Claim, DriverListener } from '../../../src/core/driver.ts'
import { parseEvents } from '../../../src/drivers/postgres/notifications.ts'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { claimOn, granted, unique, until } from '../../harness/postgres-context.ts'

/** Rule 15: a notification counts only with the proof that the server computed for the newest call of its claim. */

const url = inject('servers').postgres ?? ''
const id = randomBytes(6).toString('hex')
const [schema, replaced, role] = [`proofs_${id}`, `replaced_${id}`, `keyless_${id}`]
let pool: pg.Pool

beforeAll(async () => {
  pool = new pg.Pool({ connectionString: url, max: 10, options: `-c search_path=${schema}` })
  await migratePostgres({ client: pool, schema })
})
afterAll(async () => {
  const drop = (name: string): string => `DROP SCHEMA IF EXISTS ${name} CASCADE;`
  await pool.query(`SET client_min_messages = warning; ${drop(schema)} ${drop(replaced)} DROP ROLE IF EXISTS ${role}`)
  await pool.end()
})

describe.concurrent('postgres: proofs', { timeout: 30_000 }, () => {
  it('failure 37: a grant of the call before the newest one is a wake-up, older ones count for nothing', async () => {
    await using scene = await startScene()
    const { driver, waiter, heard, send } = scene
    const grant = ['1', '2', '30000']
    const wake = ['', '', '']
    const calls = [await scene.call()]
    for (let more = 0; more < 2; more += 1) {
      await driver.acquire([waiter])
      calls.push(await scene.call())
    }
    assert.equal(new Set(calls).size, 3, 'a call has the text of another one')
    const [oldest, before, newest] = calls as [string, string, string]
    await send(oldest, grant)
    await send(oldest, wake)
    await send(before, grant)
    await send(before, wake)
    await send(newest, wake)
    await send(newest, grant)
    await until('the last one', () => heard.length >= 4)
    const woken = `wake ${waiter.claimId}`
    assert.deepEqual(heard, [woken, woken, woken, `granted ${waiter.claimId}`])
  })

  it('failure 38: a message that was overheard does not count a second time', async () => {
    await using scene = await startScene()
    const { driver, holder, waiter, heard, channel } = scene
    const payloads: string[] = []
    await using spy = await openClient()
    spy.client.on('notification', ({ payload = '' }) => payloads.push(payload))
    await spy.client.query(`LISTEN "${channel}"`)
    await driver.release([holder])
    await until('the grant', () => heard.length > 0 && payloads.length > 0)
    assert.deepEqual(heard, [`granted ${waiter.claimId}`])
    // The lease is lost, and the claim waits again, behind a new holder.
    await driver.release([waiter])
    await granted(driver, claimOn(waiter.lockName))
    await driver.acquire([waiter])
    heard.length = 0
    await pool.query('SELECT pg_notify($1, $2)', [channel, payloads[0]])
    await scene.send(await scene.call(), ['', '', ''])
    await until('the last one', () => heard.length > 0)
    assert.deepEqual(heard, [`wake ${waiter.claimId}`])
  })

  it('a grant is proved for a call that the server ran while the release waited for its place', async () => {
    const lockName = unique('again')
    const driver = postgresDriver({ client: pool, schema })
    const stop = await driver.listen?.(ears([]))
    const holder = claimOn(lockName)
    await granted(driver, holder)
    await using listener = await openClient()
    const payloads: string[] = []
    listener.client.on('notification', ({ payload = '' }) => payloads.push(payload))
    await listener.client.query('LISTEN asks_again')
    const ask = (
      call: string,
    ): string => `SELECT holdfast_acquire(ARRAY['${lockName}'], '{asks}', '{h}', '{f}', '{NULL}',
      '{1}', '{60000}', '{60000}', '{NULL}', 'asks_again:${call}', false)`
    await pool.query(ask('first'))
    await using asking = await openClient()
    await asking.client.query('BEGIN')
    await asking.client.query(ask('second'))
    const released = driver.release([holder])
    const { processID } = asking.client as unknown as { processID: number }
    const blocked = 'SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))'
    await until('the release to wait', async () => (await pool.query(blocked, [processID])).rowCount === 1)
    await asking.client.query('COMMIT')
    assert.deepEqual(await released, [true])
    await until('the grant', () => payloads.length > 0)
    const [event] = parseEvents(payloads[0] ?? '')
    assert.ok(event?.grant, 'it is a grant')
    const key = await keyOf(schema)
    assert.deepEqual([event.isProvedBy(key, 'first'), event.isProvedBy(key, 'second')], [false, true])
    await stop?.()
    await driver.close()
  })

  it('a role that may not read the key hands locks over, and notifies no waiter', async () => {
    await pool.query(`CREATE ROLE ${role} LOGIN; GRANT USAGE ON SCHEMA ${schema} TO ${role};
      GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ${schema} TO ${role};
      GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA ${schema} TO ${role};
      REVOKE SELECT ON ALL SEQUENCES IN SCHEMA ${schema} FROM ${role}`)
    const client = new pg.Pool({ connectionString: url.replace('postgres@', `${role}@`), max: 2 })
    const keyless = postgresDriver({ client, schema, migrate: false })
    await using scene = await startScene()
    const { driver, holder, waiter, heard } = scene
    assert.deepEqual(await keyless.release([holder]), [true])
    const { fencingToken } = await granted(driver, waiter)
    assert.ok(fencingToken > 0)
    assert.deepEqual(heard, [])
    await assert.rejects(async () => keyless.listen?.(ears([])), /permission denied for the sequences/)
    await keyless.close()
    await client.end()
    await pool.query(`DROP OWNED BY ${role}`)
  })

  it('if the key is replaced, clients that listen learn of it', async () => {
    await migratePostgres({ client: pool, schema: replaced })
    await using scene = await startScene(replaced)
    const { waiter, heard } = scene
    const before = await keyOf(replaced)
    await pool.query(`SELECT setval('${replaced}.holdfast_key_1', 7)`)
    assert.notEqual(await keyOf(replaced), before)
    await migratePostgres({ client: pool, schema: replaced })
    await until('a wake-up', async () => {
      await scene.send(await scene.call(), ['', '', ''])
      return heard.length > 0
    })
    assert.equal(heard[0], `wake ${waiter.claimId}`)
  })
})

async function openClient() {
  const client = new pg.Client({ connectionString: url, options: `-c search_path=${schema}` })
  await client.connect()
  return { client, [Symbol.asyncDispose]: () => client.end() }
}

/** A lock that one claim holds and another one waits for, through a driver that listens. */
async function startScene(of = schema) {
  const lockName = unique('proved')
  const driver = postgresDriver({ client: pool, schema: of })
  const [holder, waiter]: [Claim, Claim] = [claimOn(lockName), claimOn(lockName, 60_000)]
  const heard: string[] = []
  const stop = await driver.listen?.(ears(heard))
  await granted(driver, holder)
  await driver.acquire([waiter])
  const place = async (): Promise<[channel: string, call: string]> => {
    const text = `SELECT channel FROM ${of}.holdfast_waiters WHERE claim_id = $1`
    return (await pool.query(text, [waiter.claimId])).rows[0].channel.split(':')
  }
  const [channel] = await place()
  return {
    driver,
    holder,
    waiter,
    heard,
    channel,
    /** The text of the newest call that the server knows. */
    call: async (): Promise<string> => (await place())[1],
    /** Sends a message that is proved for a call, as only the server can. */
    async send(call: string, terms: readonly string[]): Promise<void> {
      const key = await keyOf(of)
      const told = [key, call, ...terms, waiter.claimId, key].join(' ')
      const event = [waiter.claimId, ...terms, createHash('sha256').update(told).digest('hex')]
      await pool.query('SELECT pg_notify($1, $2)', [channel, JSON.stringify([event])])
    },
    async [Symbol.asyncDispose]() {
      await stop?.()
      await driver.close()
    },
  }
}

const keyOf = async (of: string): Promise<string> =>
  (await pool.query(`SELECT ${of}.holdfast_key() AS key`)).rows[0].key

const ears = (heard: string[]): DriverListener => ({
  granted: (claimId) => void heard.push(`granted ${claimId}`),
  wake: (_, claimId) => void heard.push(`wake ${claimId}`),
  lost: () => {},
  disconnected: () => {},
})
