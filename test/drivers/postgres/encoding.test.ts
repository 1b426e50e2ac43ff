import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, leasesOn } from '../../harness/postgres-context.ts'

const shared = inject('servers').postgres ?? ''
const database = `latin_${randomBytes(6).toString('hex')}`
let admin: pg.Client
let pool: pg.Pool
let driver: Driver

beforeAll(async () => {
  admin = new pg.Client(shared)
  await admin.connect()
  await admin.query(`CREATE DATABASE ${database} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0`)
  const url = new URL(shared)
  url.pathname = `/${database}`
  pool = new pg.Pool({ connectionString: url.href, max: 2 })
  driver = postgresDriver({ client: pool })
})
afterAll(async () => {
  await driver.close()
  await pool.end()
  await admin.query(`DROP DATABASE ${database} WITH (FORCE)`)
  await admin.end()
})

const FOREIGN = '\u65e5\u672c'
const unstorable = { code: 'STORE_UNAVAILABLE', retryable: false, message: /encoding of the database/ }

describe('postgres: a database in LATIN1', () => {
  it('keeps the names that it has characters for', async () => {
    await granted(driver, claimOn('caf\u00e9'))
    assert.equal((await leasesOn(driver, 'caf\u00e9')).length, 1)
  })

  it('failure 44: a name that it cannot store is an error of its own, and costs a list nothing else', async () => {
    const claims = ['a', 'b', FOREIGN, 'c', 'd'].map((name) => claimOn(name))
    const answers = await driver.acquire(claims, newCall())
    assert.deepEqual(
      answers.map((answer) => (answer instanceof Error ? 'error' : answer.granted)),
      [true, true, 'error', true, true],
    )
    assert.match(String(answers[2]), unstorable.message)
    const leases = claims.map((claim, at) => {
      const answer = answers[at]
      const fencingToken = answer && 'granted' in answer && answer.granted ? answer.fencingToken : 1
      return { ...claim, fencingToken }
    })
    const renewed = await driver.renew(leases.map((lease) => ({ ...lease, ttlMs: 60_000 })))
    assert.deepEqual(renewed.map(String).with(2, ''), ['renewed', 'renewed', '', 'renewed', 'renewed'])
    assert.match(String(renewed[2]), unstorable.message)
    const released = await driver.release(leases)
    assert.deepEqual(released.map(String).with(2, ''), ['true', 'true', '', 'true', 'true'])
    assert.match(String(released[2]), unstorable.message)
  })

  it('failure 44: so is one of a group, which costs the other groups nothing', async () => {
    const groups = [
      ['e', FOREIGN],
      ['f', 'g'],
    ].flatMap((names, group) => names.map((name) => ({ ...claimOn(name), group: `${group}` })))
    const answers = await driver.acquire(groups, newCall())
    assert.deepEqual(
      answers.map((answer) => (answer instanceof Error ? 'error' : answer.granted)),
      ['error', 'error', true, true],
    )
    assert.deepEqual(await leasesOn(driver, 'e'), [])
  })

  it('failure 44: so is a key of a rate limit', async () => {
    const limits = [{ limit: 5, periodMs: 3_600_000, burst: 5 }]
    const request = (name: string) => ({ name, cost: 1, limits })
    const answers = (await driver.consume?.(['x', FOREIGN, 'y'].map(request))) ?? []
    assert.deepEqual(
      answers.map((answer) => (answer instanceof Error ? 'error' : answer.remaining)),
      [4, 'error', 4],
    )
  })

  it('says of a single claim why it fails, and that another try does not help', async () => {
    await assert.rejects(driver.acquire([claimOn(FOREIGN)], newCall()), unstorable)
  })
})
