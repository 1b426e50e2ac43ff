import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { describe, inject, it, vi } from 'vitest'
import type { Grant } from '../../../src/core/driver.ts'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import {
  advisoryKey,
  openPostgresAdvisory,
  postgresAdvisoryDriver,
  tryLockInTransaction,
} from '../../../src/drivers/postgres-advisory.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, unique, until } from '../../harness/postgres-context.ts'

const url = inject('servers').postgres ?? ''
const advisoryUrl = url.replace('postgres:', 'postgres+advisory:')

describe.concurrent('postgres: a Client of pg that is passed in', () => {
  for (const isolation of ['read\\ committed', 'serializable']) {
    it(`gets one query at a time from all drivers that use it, by default ${isolation}`, async () => {
      const options = `-c default_transaction_isolation=${isolation}`
      const client = new pg.Client({ connectionString: url, options })
      await client.connect()
      await migratePostgres({ client })
      const seen = watched(client)
      const table = postgresDriver({ client })
      const drivers = [table, postgresDriver({ client }), postgresAdvisoryDriver({ client })]
      const claims = Array.from({ length: 12 }, (_, index) => claimOn(unique(`one-client-${index}`)))
      const [stop] = await Promise.all([
        table.listen?.({ wake() {}, granted() {}, lost() {}, disconnected() {} }),
        ...drivers.flatMap((driver) => claims.map((claim) => driver.acquire([claim], newCall()))),
      ])
      await Promise.all([stop?.(), ...drivers.map((driver) => driver.release(claims))])
      await Promise.all(drivers.map((driver) => driver.close()))
      // pg warns that its next version will refuse concurrent queries.
      assert.equal(seen.mostAtOnce, 1)
      // Every call is one statement, so no other query can get into its transaction.
      assert.deepEqual(
        seen.texts.filter((text) => /^(BEGIN|COMMIT)/.test(text)),
        [],
      )
      await client.end()
    })
  }
})

describe.concurrent('postgres-advisory: a Client of pg that is passed in', () => {
  it('failure 41: has one driver at a time, because the server grants a session a lock that it has', async () => {
    await using scene = await oneClient()
    const { client } = scene
    const first = postgresAdvisoryDriver({ client })
    await granted(first, claimOn(unique('one-driver')))
    assert.throws(() => postgresAdvisoryDriver({ client }), { code: 'INVALID_ARGUMENT', message: /one first/ })
    await first.close()
    const second = postgresAdvisoryDriver({ client })
    await granted(second, claimOn(unique('one-driver')))
    await second.close()
  })

  it('has one driver at a time, even if the program has loaded two copies of this package', async () => {
    await using scene = await oneClient()
    const { client } = scene
    const first = postgresAdvisoryDriver({ client })
    vi.resetModules()
    const copy = await import('../../../src/drivers/postgres-advisory.ts')
    assert.notEqual(copy.postgresAdvisoryDriver, postgresAdvisoryDriver)
    assert.throws(() => copy.postgresAdvisoryDriver({ client }), { code: 'INVALID_ARGUMENT', message: /one first/ })
    await first.close()
    await copy.postgresAdvisoryDriver({ client }).close()
  })

  it('is refused by lockInTransaction until its driver is closed', async () => {
    await using scene = await oneClient()
    const { client } = scene
    const driver = postgresAdvisoryDriver({ client })
    const claim = claimOn(unique('in-transaction'))
    await granted(driver, claim)
    await client.query('BEGIN')
    const asked = tryLockInTransaction(client, claim.lockName)
    await assert.rejects(asked, { code: 'INVALID_ARGUMENT', message: /without a postgres-advisory driver/ })
    await client.query('ROLLBACK')
    await driver.close()
    await client.query('BEGIN')
    assert.equal(await tryLockInTransaction(client, claim.lockName), true)
    await client.query('ROLLBACK')
  })

  it('rule 8: takes no lock inside a transaction that has an id, which could be a lower token', async () => {
    await using scene = await oneClient()
    const { client } = scene
    const [driver, other] = [postgresAdvisoryDriver({ client }), await openPostgresAdvisory(advisoryUrl)]
    const names = [unique('late'), unique('late')] as const
    await client.query('BEGIN')
    await client.query('SELECT pg_current_xact_id()')
    for (const lockName of names) {
      const claim = claimOn(lockName)
      await granted(other, claim)
      await other.release([claim])
    }
    const claims = names.map((lockName) => claimOn(lockName))
    const late = { code: 'STORE_UNAVAILABLE', retryable: false, message: /inside a transaction of yours/ }
    await assert.rejects(driver.acquire(claims.slice(0, 1), newCall()), late)
    await assert.rejects(driver.acquire(claims, newCall()), late)
    for (const lockName of names) assert.deepEqual((await other.inspect({ lockName })).leases, [])
    await client.query('COMMIT')
    for (const claim of claims) await granted(driver, claim)
    await Promise.all([driver.close(), other.close()])
  })

  it('keeps its leases during a failed transaction, and can release them after it', async () => {
    await using scene = await oneClient()
    const { client } = scene
    const driver = postgresAdvisoryDriver({ client })
    const claim = claimOn(unique('failed'))
    const { fencingToken } = await granted(driver, claim)
    const lease = { ...claim, fencingToken }
    await client.query('BEGIN')
    await assert.rejects(client.query('SELECT 1 / 0'))
    await assert.rejects(driver.acquire([claimOn(unique('failed'))], newCall()), { code: 'STORE_UNAVAILABLE' })
    await assert.rejects(driver.release([lease]), { code: 'STORE_UNAVAILABLE' })
    await client.query('ROLLBACK')
    assert.deepEqual(await driver.renew([lease]), ['held'])
    assert.deepEqual(await driver.release([lease]), [true])
    await driver.close()
  })
})

describe.concurrent('postgres-advisory: a lease that was waited for', () => {
  it('begins with its grant, not with its request', async () => {
    await using scene = await oneClient()
    const { client } = scene
    const clock = async () =>
      Number((await client.query('SELECT extract(epoch FROM clock_timestamp()) * 1000 AS ms')).rows[0].ms)
    const [holding, waiting] = [await openPostgresAdvisory(advisoryUrl), await openPostgresAdvisory(advisoryUrl)]
    const claim = claimOn(unique('acquired-at'))
    await granted(holding, claim)
    const grants: Grant[] = []
    await waiting.listen?.({ granted: (_, grant) => grants.push(grant), wake() {}, lost() {}, disconnected() {} })
    await waiting.acquire([claimOn(claim.lockName, 60_000)], newCall())
    const queued = `SELECT FROM pg_locks
      WHERE locktype = 'advisory' AND NOT granted AND (classid::bigint << 32 | objid::bigint) = $1`
    const key = advisoryKey(claim.lockName)
    await until('it to be queued', async () => ((await client.query(queued, [key])).rowCount ?? 0) > 0)
    const releasedMs = await clock()
    await holding.release([claim])
    const { acquiredAtMs } = await until('its turn', () => grants[0])
    assert.ok(acquiredAtMs >= releasedMs, `${releasedMs - acquiredAtMs} ms before the release`)
    await Promise.all([holding.close(), waiting.close()])
  })
})

async function oneClient(): Promise<AsyncDisposable & { client: pg.Client }> {
  const client = new pg.Client(url)
  await client.connect()
  return { client, [Symbol.asyncDispose]: () => client.end() }
}

describe.concurrent('postgres-advisory: the settings of a Pool of pg that is passed in', () => {
  it('its deadline for a query does not apply to a wait in the server’s queue', async () => {
    const deadlineMs = 300
    const [pool, impatient] = [1, 2].map(() => new pg.Pool({ connectionString: url })) as [pg.Pool, pg.Pool]
    impatient.options.query_timeout = deadlineMs
    const [driver, waiting] = [postgresAdvisoryDriver({ client: pool }), postgresAdvisoryDriver({ client: impatient })]
    const [holder, next] = [claimOn(unique('query-timeout')), claimOn('', 60_000)]
    await granted(driver, holder)
    const heard: string[] = []
    await waiting.listen?.({ granted: (claimId) => heard.push(claimId), wake() {}, lost() {}, disconnected() {} })
    await waiting.acquire([{ ...next, lockName: holder.lockName }], newCall())
    await sleep(2 * deadlineMs) // the deadline passes, but does not apply
    await driver.release([holder])
    await until('its turn, which it has not asked for again', () => heard.length > 0)
    assert.deepEqual(heard, [next.claimId])
    await Promise.all([driver.close(), waiting.close()])
    await Promise.all([pool.end(), impatient.end()])
  })
})

/** The queries of a client, and how many of them were in flight at once. */
function watched(client: pg.Client): { mostAtOnce: number; readonly texts: string[] } {
  const seen = { mostAtOnce: 0, texts: [] as string[] }
  const query = client.query.bind(client) as (config: { text: string }) => Promise<unknown>
  let atOnce = 0
  const watching = (config: { text: string }): Promise<unknown> => {
    atOnce += 1
    seen.mostAtOnce = Math.max(seen.mostAtOnce, atOnce)
    seen.texts.push(config.text)
    return query(config).finally(() => {
      atOnce -= 1
    })
  }
  Object.assign(client, { query: watching })
  return seen
}
