import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import { migratePostgres, postgresDriver, postgresFence } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, unique } from '../../harness/postgres-context.ts'

const url = inject('servers').postgres ?? ''
let root: pg.Pool
beforeAll(() => {
  root = new pg.Pool({ connectionString: url, max: 2 })
})
afterAll(() => root.end())

/** The statements for roles in each page of the docs. */
const pages = ['docs/explanation/safety.md', 'docs/drivers/postgres.md']

describe.concurrent('postgres: roles with exactly the privileges that the docs grant them', () => {
  for (const page of pages) {
    it(`${page}: an application can use locks, rates and fences, also after a later migration`, async () => {
      await using scene = await openScene(page)
      await using client = await scene.connect('app')
      const driver = postgresDriver({ client, schema: scene.schema, migrate: false })
      const claims = [claimOn(unique('a')), claimOn(unique('b'))] as const
      const leases = await Promise.all(
        claims.map(async (claim) => ({ ...claim, ...(await granted(driver, claim)), ttlMs: 60_000 })),
      )
      const waiter = claimOn(claims[0].lockName, 60_000)
      await driver.acquire([waiter], newCall())
      await granted(driver, { ...claimOn(unique('read')), mode: 'shared' })
      assert.deepEqual(await driver.renew(leases), ['renewed', 'renewed'])
      const forced = await granted(driver, { ...claimOn(claims[0].lockName), forceUpTo: Number.MAX_SAFE_INTEGER })
      assert.deepEqual(await driver.release(leases), [false, true])
      const limits = [{ limit: 1, periodMs: 60_000, burst: 1 }]
      const [step] = (await driver.consume?.([{ name: unique('rate'), cost: 1, limits }])) ?? []
      assert.ok(step && 'allowed' in step && step.allowed, String(step))
      await client.query('BEGIN')
      await postgresFence(client, unique('account'), forced.fencingToken, { schema: scene.schema })
      await client.query('COMMIT')
      assert.equal((await driver.inspect({})).waiters.length, 1)
      await driver.close()
    })
  }

  it('docs/explanation/safety.md: monitoring can read, also after a later migration, but not lock', async () => {
    await using scene = await openScene('docs/explanation/safety.md')
    const claim = claimOn(unique('watched'))
    const owned = postgresDriver({ client: root, schema: scene.schema })
    await granted(owned, claim)
    await using client = await scene.connect('monitor')
    const driver = postgresDriver({ client, schema: scene.schema, migrate: false })
    assert.equal((await driver.inspect({})).leases[0]?.claimId, claim.claimId)
    await client.query(`SELECT FROM ${scene.schema}.holdfast_forced_releases`)
    await assert.rejects(driver.acquire([claimOn(unique('other'))], newCall()), {
      code: 'STORE_UNAVAILABLE',
      message: /role/,
    })
    await assert.rejects(driver.release([claim]), { code: 'STORE_UNAVAILABLE' })
    await driver.close()
    await owned.close()
  })
})

/**
 * A schema whose owner is no superuser, after an early migration, the page's statements, and a migration that creates
 * more tables.
 */
async function openScene(page: string) {
  const word = randomBytes(5).toString('hex')
  const names = { locks: `locks_${word}`, app: `app_${word}`, monitor: `monitor_${word}`, owner: `owner_${word}` }
  const { locks: schema, app, monitor, owner } = names
  await root.query(`CREATE ROLE ${app} LOGIN; CREATE ROLE ${monitor} LOGIN; CREATE ROLE ${owner} LOGIN;
    CREATE SCHEMA ${schema} AUTHORIZATION ${owner}`)
  const connect = async (role: keyof typeof names) => {
    const client = new pg.Client(url.replace(/\/\/[^@]*@/, `//${names[role]}@`))
    await client.connect()
    return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() })
  }
  {
    await using client = await connect('owner')
    await migratePostgres({ client, schema })
    const later = ['holdfast_rates', 'holdfast_forced_releases', 'holdfast_fences', 'holdfast_waiters']
    await client.query(`DROP TABLE ${later.map((table) => `${schema}.${table}`).join(', ')} CASCADE;
      DROP SEQUENCE ${schema}.holdfast_tokens; DELETE FROM ${schema}.holdfast_format`)
    await client.query(
      grantsOf(page).replaceAll(/\b(locks|app|monitor)\b/g, (name) => names[name as keyof typeof names]),
    )
    await migratePostgres({ client, schema })
  }
  return {
    schema,
    connect,
    async [Symbol.asyncDispose]() {
      await root.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE;
        DROP OWNED BY ${app}, ${monitor}, ${owner}; DROP ROLE ${app}, ${monitor}, ${owner}`)
    },
  }
}

function grantsOf(page: string): string {
  const text = readFileSync(new URL(`../../../${page}`, import.meta.url), 'utf8')
  const blocks = [...text.matchAll(/^```sql\n(.*?)^```/gms)].map(([, sql]) => sql as string)
  const found = blocks.filter((sql) => sql.startsWith('GRANT USAGE ON SCHEMA'))
  assert.equal(found.length, 1, `${page} has one list of GRANTs`)
  return found[0] as string
}
