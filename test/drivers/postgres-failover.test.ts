import assert from 'node:assert/strict'
import pg from 'pg'
import { describe, it } from 'vitest'
import type { Driver } from '../../src/core/driver.ts'
import { openPostgres } from '../../src/drivers/postgres.ts'
import { openPostgresAdvisory } from '../../src/drivers/postgres-advisory.ts'
import { startProxy } from '../harness/proxy.ts'
import { startPostgres, startPostgresReplica } from '../harness/servers.ts'
import { claimOn, granted, until } from './postgres/scene.ts'

/** Two servers are started one after the other, and the machine may be busy. */
const SLOW = { timeout: 60_000 }

describe('postgres: failover', () => {
  // Asynchronous replication: what the primary has committed last is not on the replica that takes its place.
  it(
    'failure 18: after a failover to a replica that lags, the next token of either driver is higher than any before',
    SLOW,
    async () => {
      await using primary = await startPostgres()
      await using proxy = await startProxy(primary.port)
      const old = await openBoth(primary.url)
      const tokens = [await draw(old, 5)]
      const primary_conninfo = `host=127.0.0.1 port=${proxy.port} user=postgres`
      await using replica = await startPostgresReplica(primary.port, { settings: { primary_conninfo } })
      // As if the minute were over that the table driver's counter is ahead of the clock: it was raised since the replica came up.
      await ask(primary.url, `SELECT setval('holdfast_tokens', 1)`)
      tokens.push(await draw(old, 5))
      await until('the replica to catch up', () => isLevel(primary.url, replica.url))
      proxy.blackHole()
      // These are lost. As many as one write of the counter to the log covers, and more.
      tokens.push(await draw(old, 100))
      await primary.kill()
      await ask(replica.url, 'SELECT pg_promote()')
      const promoted = await openBoth(replica.url)
      tokens.push(await draw(promoted, 5))
      for (const driver of ['table', 'advisory'] as const) {
        const all = tokens.flatMap((drawn) => drawn[driver])
        assert.deepEqual(
          all,
          [...new Set(all)].sort((x, y) => x - y),
        )
      }
      for (const { table, advisory } of [old, promoted]) await Promise.all([table.close(), advisory.close()])
    },
  )
})

describe('postgres-advisory: failover', () => {
  it(
    'failure 18: after a failover to a replica that has not seen its primary’s last recovery, the next token is higher than any before',
    SLOW,
    async () => {
      await using primary = await startPostgres()
      await using proxy = await startProxy(primary.port)
      const primary_conninfo = `host=127.0.0.1 port=${proxy.port} user=postgres`
      await using replica = await startPostgresReplica(primary.port, { settings: { primary_conninfo } })
      const writer = `SELECT pid AS answer FROM pg_stat_activity WHERE backend_type = 'walwriter'`
      const pid = Number(await ask(primary.url, writer))
      await until('the replica to catch up', () => isLevel(primary.url, replica.url))
      proxy.blackHole()
      process.kill(pid, 'SIGKILL')
      const again = `SELECT pid AS answer FROM pg_stat_activity WHERE backend_type = 'walwriter' AND pid <> ${pid}`
      await until('recovery', () => ask(primary.url, again).catch(() => undefined))
      const old = await openPostgresAdvisory(primary.url)
      const tokens = await drawFrom(old, 5)
      await old.close()
      await primary.kill()
      await ask(replica.url, 'SELECT pg_promote()')
      const promoted = await openPostgresAdvisory(replica.url)
      tokens.push(...(await drawFrom(promoted, 5)))
      const shown = await granted(promoted, claimOn('shown'))
      const [lease] = (await promoted.inspect({ lockName: 'shown' })).leases
      assert.equal(lease?.fencingToken, shown.fencingToken)
      await promoted.close()
      assert.deepEqual(
        tokens,
        [...new Set(tokens)].sort((x, y) => x - y),
      )
    },
  )

  it('a standby is refused, because a session outlives its promotion', SLOW, async () => {
    await using primary = await startPostgres()
    await using replica = await startPostgresReplica(primary.port)
    const driver = await openPostgresAdvisory(replica.url)
    await assert.rejects(drawFrom(driver, 1), { code: 'STORE_UNAVAILABLE', message: /is a standby/ })
    await ask(replica.url, 'SELECT pg_promote()')
    assert.equal((await drawFrom(driver, 1)).length, 1)
    await driver.close()
  })
})

describe('postgres, relaxed: a crash that the postmaster survives', () => {
  it(
    'takes the last moment’s commits along, the counter’s too, and the next token is higher all the same',
    SLOW,
    async () => {
      await using server = await startPostgres()
      const url = `${server.url}?holdfast_durability=relaxed`
      const driver = await openPostgres(url)
      const tokens = await drawFrom(driver, 5)
      const writer = `SELECT pid AS answer FROM pg_stat_activity WHERE backend_type = 'walwriter'`
      const pid = Number(await ask(server.url, writer))
      process.kill(pid, 'SIGSTOP') // Nobody else writes to the disk what did not wait for it.
      await ask(server.url, 'CREATE TABLE on_the_disk ()') // This does, and all that was before it.
      tokens.push(...(await drawFrom(driver, 50)))
      process.kill(pid, 'SIGKILL')
      const last = 'SELECT last_value::float8 AS answer FROM holdfast_tokens'
      const counter = await until('recovery', () => ask(server.url, last).catch(() => undefined))
      assert.ok(Number(counter) < Math.max(...tokens), 'the crash has taken nothing along')
      const recovered = await openPostgres(url)
      tokens.push(...(await drawFrom(recovered, 5)))
      assert.deepEqual(
        tokens,
        [...new Set(tokens)].sort((x, y) => x - y),
      )
      await Promise.all([driver.close(), recovered.close()])
    },
  )
})

const openBoth = async (url: string) => ({ table: await openPostgres(url), advisory: await openPostgresAdvisory(url) })

const draw = async ({ table, advisory }: Awaited<ReturnType<typeof openBoth>>, count: number) => ({
  table: await drawFrom(table, count),
  advisory: await drawFrom(advisory, count),
})

async function drawFrom(driver: Driver, count: number): Promise<number[]> {
  const tokens: number[] = []
  for (let round = 0; round < count; round += 1) {
    const claim = claimOn('account:7')
    const { fencingToken } = await granted(driver, claim)
    tokens.push(fencingToken)
    await driver.release([{ ...claim, fencingToken }])
  }
  return tokens
}

const isLevel = async (primary: string, replica: string): Promise<boolean> =>
  (await ask(replica, 'SELECT pg_last_wal_replay_lsn() AS answer')) ===
  (await ask(primary, 'SELECT pg_current_wal_lsn() AS answer'))

async function ask(url: string, text: string): Promise<unknown> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return (await client.query(text)).rows[0]?.answer
  } finally {
    await client.end()
  }
}
