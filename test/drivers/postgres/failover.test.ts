import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { describe, inject, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { openPostgres } from '../../../src/drivers/postgres.ts'
import { openPostgresAdvisory } from '../../../src/drivers/postgres-advisory.ts'
import { claimOn, granted, until } from '../../harness/postgres-context.ts'
import { startProxy } from '../../harness/proxy.ts'
import { startPostgres, startPostgresReplica } from '../../harness/servers.ts'

/** Two servers are started one after the other, and the machine may be busy. */
const SLOW = { timeout: 60_000 }

describe('postgres: failover', () => {
  // Asynchronous replication: the last commits of the primary are not on the replica that replaces it.
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
      // As if the second by which the table driver’s counter is ahead of the clock were over, and the counter had been
      // raised since the replica was started.
      await ask(primary.url, `SELECT setval('holdfast_tokens', 1)`)
      tokens.push(await draw(old, 5))
      await until('the replica to catch up', () => isLevel(primary.url, replica.url))
      proxy.blackHole()
      // These are lost: more than one log record of the counter covers.
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
    'failure 18: the next token is higher after a failover to a replica that missed the primary’s recovery',
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

describe('postgres-advisory: the timeline that tokens are counted by', () => {
  it('is needed: a role that may not read it is refused, and the error names the missing privilege', async () => {
    await using scene = await ownDatabase()
    const driver = await openPostgresAdvisory(scene.url)
    await ask(scene.adminUrl, 'REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC')
    await assert.rejects(drawFrom(driver, 1), {
      code: 'STORE_UNAVAILABLE',
      retryable: false,
      message: /GRANT EXECUTE ON FUNCTION pg_walfile_name\(pg_lsn\) TO/,
    })
    await ask(scene.adminUrl, `GRANT EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) TO ${scene.role}`)
    assert.equal((await drawFrom(driver, 1)).length, 1)
    await driver.close()
  })

  it('is read again after a failure, so that no token is lower than one before', async () => {
    await using scene = await ownDatabase()
    // Replaces the server's own function: twice promoted.
    const answers = (body: string) =>
      ask(
        scene.adminUrl,
        `CREATE OR REPLACE FUNCTION public.pg_walfile_name(pg_lsn) RETURNS text
         LANGUAGE plpgsql AS 'BEGIN ${body}; END'`,
      )
    const drawOne = async (): Promise<number> => {
      const driver = await openPostgresAdvisory(scene.url)
      try {
        return (await drawFrom(driver, 1))[0] as number
      } finally {
        await driver.close()
      }
    }
    await ask(scene.adminUrl, `ALTER DATABASE ${scene.role} SET search_path = public, pg_catalog`)
    await answers(`RETURN ''000000030000000000000000''`)
    const first = await drawOne()
    for (const code of ['57014', '53200', '40001']) {
      await answers(`RAISE SQLSTATE ''${code}''`)
      await assert.rejects(drawOne(), { code: 'STORE_UNAVAILABLE', retryable: true, message: new RegExp(code) })
    }
    await answers(`RETURN ''000000030000000000000000''`)
    const second = await drawOne()
    assert.ok(second > first, `${second} after ${first}`)
    // A service without timelines.
    for (const code of ['42883', '0A000', '55000']) {
      await answers(`RAISE SQLSTATE ''${code}''`)
      assert.ok((await drawOne()) < first)
    }
  })
})

describe('postgres, relaxed: a crash that the postmaster survives', () => {
  it(
    'takes the last moment’s commits along, the counter’s too, and the next token is higher all the same',
    SLOW,
    async () => {
      // Another process of the server may have written all of it to the disk, which proves nothing.
      for (let tries = 1; ; tries += 1) {
        const { tokens, counter } = await crash()
        assert.deepEqual(
          tokens,
          [...new Set(tokens)].sort((x, y) => x - y),
        )
        if (counter < (tokens[BEFORE - 1] as number)) return
        assert.ok(tries < 5, 'the crash has taken nothing along')
      }
    },
  )
})

/** How many tokens are drawn before the crash. */
const BEFORE = 55

/** `counter`: the last value that the server knows after the crash. */
async function crash(): Promise<{ readonly tokens: readonly number[]; readonly counter: number }> {
  await using server = await startPostgres()
  const url = `${server.url}?holdfast_durability=relaxed`
  const driver = await openPostgres(url)
  const tokens = await drawFrom(driver, 5)
  const writer = `SELECT pid AS answer FROM pg_stat_activity WHERE backend_type = 'walwriter'`
  const pid = Number(await ask(server.url, writer))
  process.kill(pid, 'SIGSTOP') // No other process writes to the disk what did not wait for it.
  await ask(server.url, 'CREATE TABLE on_the_disk ()') // This waits, with all before it.
  tokens.push(...(await drawFrom(driver, BEFORE - 5)))
  process.kill(pid, 'SIGKILL')
  const last = 'SELECT last_value::float8 AS answer FROM holdfast_tokens'
  const counter = Number(await until('recovery', () => ask(server.url, last).catch(() => undefined)))
  const recovered = await openPostgres(url)
  tokens.push(...(await drawFrom(recovered, 5)))
  await Promise.all([driver.close(), recovered.close()])
  return { tokens, counter }
}

describe('postgres: the counter of tokens after a promotion', () => {
  it('is raised once, so a session that stalls in another raise cannot lower it below a token', SLOW, async () => {
    await using primary = await startPostgres()
    await using server = await startPostgresReplica(primary.port)
    const driver = await openPostgres(primary.url)
    await drawFrom(driver, 1)
    await driver.close()
    // The function itself, except that a session can ask it to stall before it sets the counter, for as long as
    // another session has the lock 1.
    const source = `SELECT pg_get_functiondef('holdfast_raise_tokens'::regproc) AS answer`
    const sets = `PERFORM setval('holdfast_tokens'`
    const stall = `PERFORM pg_advisory_xact_lock(1) WHERE current_setting('test.stalls', true) = 'on'; ${sets}`
    await ask(primary.url, String(await ask(primary.url, source)).replaceAll(sets, stall))
    await until('the replica to catch up', () => isLevel(primary.url, server.url))
    await ask(server.url, 'SELECT pg_promote()')

    const quick = new pg.Client(server.url)
    const slow = new pg.Client({ connectionString: server.url, options: '-c test.stalls=on' })
    await Promise.all([quick.connect(), slow.connect()])
    await quick.query('SELECT pg_advisory_lock(1)')
    const raise = 'SELECT holdfast_raise_tokens() AS raised'
    assert.equal((await quick.query(raise)).rows[0].raised, true)
    let isDone = false
    const slowly = slow.query(raise).finally(() => {
      isDone = true
    })
    const stalls = `SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted`
    await until('the stall', async () => isDone || ((await quick.query(stalls)).rowCount ?? 0) > 0)
    const draw = `SELECT max(nextval('holdfast_tokens'))::float8 AS token FROM generate_series(1, $1::integer)`
    const before = (await quick.query(draw, [500_000])).rows[0].token
    await quick.query('SELECT pg_advisory_unlock(1)')
    const { raised } = (await slowly).rows[0]
    const after = (await quick.query(draw, [1])).rows[0].token
    await Promise.all([quick.end(), slow.end()])
    assert.ok(after > before, `${after} after ${before}`)
    assert.equal(raised, false)
  })
})

describe('postgres: the counter of tokens after statistics were reset', () => {
  it('is raised once, even if an open transaction has read statistics before', async () => {
    await using server = await startPostgres()
    const driver = await openPostgres(server.url)
    await drawFrom(driver, 1)
    await driver.close()
    const [quick, open] = [new pg.Client(server.url), new pg.Client(server.url)]
    await Promise.all([quick.connect(), open.connect()])
    const raised = async (client: pg.Client) =>
      (await client.query('SELECT holdfast_raise_tokens() AS raised')).rows[0].raised as boolean
    await open.query('BEGIN')
    assert.equal(await raised(open), false)
    await quick.query(`SELECT pg_stat_reset_shared('bgwriter')`)
    const told = [await raised(quick)]
    for (let round = 0; round < 3; round += 1) told.push(await raised(open), await raised(quick))
    await open.query('ROLLBACK')
    await Promise.all([quick.end(), open.end()])
    assert.deepEqual(told, [true, false, false, false, false, false, false])
  })
})

/** A database and a role of the same name, on the shared server: privileges on functions belong to a database. */
async function ownDatabase() {
  const shared = inject('servers').postgres ?? ''
  const role = `timeline_${randomBytes(6).toString('hex')}`
  await ask(shared, `CREATE ROLE ${role} LOGIN`)
  await ask(shared, `CREATE DATABASE ${role}`)
  const adminUrl = new URL(shared)
  adminUrl.pathname = `/${role}`
  const url = new URL(adminUrl)
  url.username = role
  return {
    role,
    adminUrl: adminUrl.href,
    url: url.href,
    async [Symbol.asyncDispose]() {
      await ask(shared, `DROP DATABASE ${role} WITH (FORCE)`)
      await ask(shared, `DROP ROLE ${role}`)
    },
  }
}

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
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query(text)).rows[0]?.answer
  } finally {
    await client.end()
  }
}
