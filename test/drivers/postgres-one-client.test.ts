import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { describe, inject, it } from 'vitest'
import { migratePostgres, postgresDriver } from '../../src/drivers/postgres.ts'
import { postgresAdvisoryDriver } from '../../src/drivers/postgres-advisory.ts'
import { claimOn, granted, unique, until } from './postgres/scene.ts'

const url = inject('servers').postgres ?? ''

describe.concurrent('postgres: a Client of pg that is passed in', () => {
  for (const isolation of ['read\\ committed', 'serializable']) {
    it(`is asked one thing after the other, whatever drivers use it, by default ${isolation}`, async () => {
      const options = `-c default_transaction_isolation=${isolation}`
      const client = new pg.Client({ connectionString: url, options })
      await client.connect()
      await migratePostgres({ client })
      const seen = watched(client)
      const table = postgresDriver({ client })
      const drivers = [table, postgresDriver({ client }), postgresAdvisoryDriver({ client })]
      const claims = Array.from({ length: 12 }, (_, index) => claimOn(unique(`one-client-${index}`)))
      const listening = table.listen?.({ wake() {}, granted() {}, lost() {}, deaf() {} })
      await Promise.all(drivers.flatMap((driver) => claims.map((claim) => driver.acquire([claim]))))
      const stop = await listening
      await Promise.all([stop?.(), ...drivers.map((driver) => driver.release(claims))])
      await Promise.all(drivers.map((driver) => driver.close()))
      // pg says of more than one at once that its next version will refuse it.
      assert.equal(seen.mostAtOnce, 1)
      // Every call is one statement: there is no transaction that others could come into.
      assert.deepEqual(
        seen.texts.filter((text) => /^(BEGIN|COMMIT)/.test(text)),
        [],
      )
      await client.end()
    })
  }
})

describe.concurrent('postgres-advisory: the settings of a Pool of pg that is passed in', () => {
  it('its deadline for a query is none for who waits in the server’s queue', async () => {
    const deadlineMs = 300
    const [pool, impatient] = [1, 2].map(() => new pg.Pool({ connectionString: url })) as [pg.Pool, pg.Pool]
    impatient.options.query_timeout = deadlineMs
    const [driver, waiting] = [postgresAdvisoryDriver({ client: pool }), postgresAdvisoryDriver({ client: impatient })]
    const [holder, next] = [claimOn(unique('query-timeout')), claimOn('', 60_000)]
    await granted(driver, holder)
    const heard: string[] = []
    await waiting.listen?.({ granted: (claimId) => heard.push(claimId), wake() {}, lost() {}, deaf() {} })
    await waiting.acquire([{ ...next, lockName: holder.lockName }])
    await sleep(2 * deadlineMs) // the deadline passes, and is not its own
    await driver.release([holder])
    await until('its turn, which it has not asked for again', () => heard.length > 0)
    assert.deepEqual(heard, [next.claimId])
    await Promise.all([driver.close(), waiting.close()])
    await Promise.all([pool.end(), impatient.end()])
  })
})

/** What a client is asked, and how much of it at once. */
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
