import assert from 'node:assert/strict'
import { describe, it, vi } from 'vitest'
import type { AcquireAnswer, Claim, Driver } from '../../../src/core/driver.ts'
import { type Clock, systemClock } from '../../../src/core/time/clock.ts'
import type { SqliteDatabase } from '../../../src/drivers/sqlite/client.ts'
import { openSqlite, sqliteDriver } from '../../../src/drivers/sqlite.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, createContext, grantOf } from '../../harness/sqlite-context.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

/** If a request looked at every lease or waiter, it would cost at least ten times as much. */
const MANY = 20_000
const MAX_TIMES = 4

describe('sqlite alone, failure 45: the cost of a request does not grow with other leases and waiters', () => {
  it.each(['exclusive', 'shared'] as const)(
    'asking again behind 20,000 waiters costs what it costs behind none (%s claims)',
    async (mode) => {
      await using context = createContext()
      const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
      const line = async (lockName: string): Promise<() => Promise<unknown>> => {
        await grantOf(driver, claimOn(lockName))
        if (lockName === 'many') queueUp(await context.database(), lockName, mode)
        const claims = Array.from({ length: 50 }, () => claimOn(lockName, { mode, waiterTtlMs: 600_000 }))
        await driver.acquire(claims, newCall())
        return () => driver.acquire(claims, newCall())
      }
      await costsAlike(await line('few'), await line('many'))
    },
  )

  it('20,000 waiting readers are not counted by each claim behind them', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const database = await context.database()
    const line = (lockName: string, waiters: number): (() => Promise<unknown>) => {
      queueUp(database, lockName, 'shared', waiters)
      const claims = Array.from({ length: 20 }, () => claimOn(lockName, { mode: 'shared' }))
      return async () => {
        // They are behind waiters that have not asked again yet, so they must wait.
        const answers = await driver.acquire(claims, newCall())
        assert.ok(answers.every((answer) => (answer as AcquireAnswer).granted === false))
      }
    }
    await costsAlike(line('few', 40), line('many', MANY))
  })

  it.each([undefined, 5])(
    'a claim beside 20,000 shared leases costs what it costs beside one (limit %s)',
    async (limit) => {
      await using context = createContext()
      const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
      const database = await context.database()
      const beside = (lockName: string, leases: number): (() => Promise<unknown>) => {
        share(database, `'${lockName}'`, leases)
        const mode = limit === undefined ? 'exclusive' : 'shared'
        const claims = Array.from({ length: 20 }, () =>
          claimOn(lockName, { mode, ...(limit && { limit, permits: limit }) }),
        )
        return async () => {
          const answers = await driver.acquire(claims, newCall())
          assert.ok(answers.every((answer) => (answer as AcquireAnswer).granted === false))
        }
      }
      await costsAlike(beside('few', 1), beside('many', MANY))
    },
  )

  it('a page of names costs as much as in a small database', async () => {
    await using context = createContext()
    const [few, many] = [
      await context.opened(openSqlite(`sqlite:${context.folder}/few.db`)),
      await context.opened(openSqlite(`sqlite:${context.path}`)),
    ]
    for (const [database, names] of [
      [await context.database(`${context.folder}/few.db`), 10],
      [await context.database(), MANY],
    ] as const) {
      share(database, "'name ' || substr(100000 + n, 2)", names)
    }
    const pages = (driver: Driver) => async () => {
      for (const query of [{}, { prefix: 'name ' }, { after: '["name 00003",null,null]' }]) {
        const { leases } = await driver.inspect({ ...query, pageSize: 5 })
        assert.equal(leases.length, 5)
      }
    }
    await costsAlike(pages(few), pages(many))
  })
})

describe('sqlite alone, failure 51: pages', () => {
  it('a page with very many leases and waiters ends early, even within a name, and the next one goes on', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const database = await context.database()
    for (const name of ['a', 'b', 'c']) share(database, `'${name}'`, 1_200)
    const waiting = Array.from({ length: 700 }, () => claimOn('b', { waiterTtlMs: 60_000 }))
    await driver.acquire(waiting, newCall())
    for (const query of [{}, { pageSize: 1 }, { lockName: 'b' }]) {
      const leases = new Set<string>()
      const waiters: string[] = []
      let after: string | undefined
      do {
        const page = await driver.inspect({ ...query, ...(after !== undefined && { after }) })
        assert.ok(page.leases.length + page.waiters.length <= 500)
        for (const { lockName, claimId } of page.leases) leases.add(`${lockName} ${claimId}`)
        for (const { claimId } of page.waiters) waiters.push(claimId)
        after = page.next
      } while (after !== undefined)
      assert.equal(leases.size, 'lockName' in query ? 1_200 : 3_600)
      assert.deepEqual(
        waiters,
        waiting.map(({ claimId }) => claimId),
      )
    }
  })
})

describe('sqlite alone, failure 48: the event loop is not blocked', () => {
  it('concurrent lists run one after the other, with a turn in between when one is due', async () => {
    await using context = createContext()
    let nowMs = 0
    let lists = 0
    const listsByTurn: number[] = []
    const clock: Clock = {
      ...systemClock,
      // Every reading of the clock is 6 ms later, so a turn is due after two of them.
      now() {
        nowMs += 6
        return { monotonicMs: nowMs, wallMs: Date.now() }
      },
      nextTurn(run) {
        setImmediate(() => {
          listsByTurn.push(lists)
          lists = 0
          run()
        })
      },
    }
    const driver = await sqliteDriver({ database: await context.database(), clock })
    await grantOf(driver, claimOn('name'))
    const claims = Array.from({ length: 20 }, () => claimOn('name', { waiterTtlMs: 60_000 }))
    const answers = await Promise.all(
      claims.map(async (claim) => {
        const answer = await driver.acquire([claim], newCall())
        lists += 1
        return answer
      }),
    )
    assert.deepEqual(
      answers.map(([answer]) => (answer as { ahead?: number }).ahead),
      claims.map((_, index) => index),
    )
    assert.ok(Math.max(...listsByTurn, lists) <= 2, `${[...listsByTurn, lists]} lists in the turns`)
  })
})

/**
 * Compares the best of several rounds. The two kinds take turns, so that a busy machine affects both. Measures CPU
 * time, not elapsed time.
 */
async function costsAlike(few: () => Promise<unknown>, many: () => Promise<unknown>): Promise<void> {
  const least = { few: Number.POSITIVE_INFINITY, many: Number.POSITIVE_INFINITY }
  for (let round = 0; round < 8; round += 1) {
    for (const [kind, run] of Object.entries({ few, many }) as ['few' | 'many', () => Promise<unknown>][]) {
      const before = process.cpuUsage()
      for (let times = 0; times < 5; times += 1) await run()
      const { user, system } = process.cpuUsage(before)
      least[kind] = Math.min(least[kind], user + system)
    }
  }
  const times = least.many / least.few
  assert.ok(times < MAX_TIMES, `${times.toFixed(1)} times as much (${least.few} and ${least.many} µs)`)
}

/** Leases of other holders, written without the driver. `lockName` is an SQL expression of `n`, the row's number. */
function share(database: SqliteDatabase, lockName: string, leases: number): void {
  database.exec(`
    WITH RECURSIVE rows (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM rows WHERE n < ${leases})
    INSERT INTO holdfast_leases
      (lock_name, claim_id, holder_id, mode, permits, fencing_token, acquired_at_ms, expires_at_ms, ttl_ms)
    SELECT ${lockName}, 'lease ' || n, 'other', 'shared', 1, n, ${NOW}, ${NOW} + 3600000, 3600000 FROM rows
  `)
}

function queueUp(database: SqliteDatabase, lockName: string, mode: Claim['mode'], waiters = MANY): void {
  database.exec(`
    WITH RECURSIVE rows (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM rows WHERE n < ${waiters})
    INSERT INTO holdfast_waiters
      (lock_name, claim_id, holder_id, mode, permits, waiting_since_ms, expires_at_ms, wait_ms)
    SELECT '${lockName}', 'waiter ' || n, 'other', '${mode}', 1, ${NOW}, ${NOW} + 3600000, 3600000 FROM rows
  `)
}

const NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
