import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Claim, DriverListener } from '../../../src/core/driver.ts'
import { parseEvents } from '../../../src/drivers/postgres/notify-connection.ts'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, unique, until } from '../../harness/postgres-context.ts'

/** Rule 15: a grant in a notification counts only with the proof that the server computed for the newest call. */

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
  it('failure 37: a grant is proved by the secret of the call that it answers, and by no other', async () => {
    await using scene = await startScene()
    const { driver, waiter, heard, proofs, send } = scene
    const calls = [newCall(), newCall()]
    for (const call of calls) await driver.acquire([waiter], call)
    const [before, newest] = calls.map(({ secret }) => secret) as [string, string]
    assert.equal(await scene.call(), newest)
    await send(before, ['1', '2', '30000'])
    await send(newest, ['1', '2', '30000'])
    await send(newest, ['', '', ''])
    await until('the last one', () => heard.length >= 3)
    const proved = proofs.map((isProvedBy) => [before, newest, ''].map(isProvedBy))
    assert.deepEqual(proved, [
      [true, false, false],
      [false, true, false],
      [false, true, false],
    ])
  })

  it('failure 38: a message that was overheard does not count a second time', async () => {
    await using scene = await startScene()
    const { driver, holder, waiter, heard, channel } = scene
    const first = await scene.call()
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
    const again = newCall()
    await driver.acquire([waiter], again)
    await pool.query('SELECT pg_notify($1, $2)', [channel, payloads[0]])
    await until('the message', () => heard.length > 1)
    const [genuine, replayed] = scene.proofs
    assert.deepEqual([genuine?.(first), replayed?.(again.secret)], [true, false])
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
    const { heard, proofs } = scene
    const before = await keyOf(replaced)
    await pool.query(`SELECT setval('${replaced}.holdfast_key_1', 7)`)
    assert.notEqual(await keyOf(replaced), before)
    await migratePostgres({ client: pool, schema: replaced })
    const call = await scene.call()
    await until('a message that is proved', async () => {
      const { length } = heard
      await scene.send(call, ['1', '2', '30000'])
      await until('the message', () => heard.length > length)
      return proofs.at(-1)?.(call)
    })
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
  const proofs: ((secret: string) => boolean)[] = []
  const stop = await driver.listen?.(ears(heard, proofs))
  await granted(driver, holder)
  await driver.acquire([waiter], newCall())
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
    proofs,
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

const ears = (heard: string[], proofs: ((secret: string) => boolean)[] = []): DriverListener => ({
  granted(claimId, _, isProvedBy = () => true) {
    heard.push(`granted ${claimId}`)
    proofs.push(isProvedBy)
  },
  wake(target, isProvedBy = () => true) {
    heard.push(`wake ${'claimId' in target ? target.claimId : target.lockName}`)
    proofs.push(isProvedBy)
  },
  lost: () => {},
  disconnected: () => {},
})
