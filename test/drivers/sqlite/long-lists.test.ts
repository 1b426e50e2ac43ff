import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, it, vi } from 'vitest'
import type { AcquireAnswer, Claim, Driver, RateAnswer } from '../../../src/core/driver.ts'
import { type Clock, systemClock } from '../../../src/core/time/clock.ts'
import type { SqliteDatabase } from '../../../src/drivers/sqlite/client.ts'
import { MAX_BUSY_MS } from '../../../src/drivers/sqlite/patience.ts'
import { sqliteDriver } from '../../../src/drivers/sqlite.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, createContext, type SqliteContext } from '../../harness/sqlite-context.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

/** Three transactions: 200, 200 and 100 entries. */
const LENGTH = 500
/** An entry of the second transaction. */
const BAD = 250
const isInBadPart = (index: number): boolean => index >= 200 && index < 400

describe('sqlite alone: a list longer than one transaction', () => {
  it('a failure in a later part keeps the answers of the other parts', async () => {
    await using context = createContext()
    const { driver, database } = await open(context)
    const claims = Array.from({ length: LENGTH }, (_, index) => claimOn(nameOf(index)))

    failOn(database, 'INSERT', 'holdfast_leases', 'NEW.lock_name')
    const granted = await driver.acquire(claims, newCall())
    const isGranted = (answer: AcquireAnswer | Error): boolean => !(answer instanceof Error) && answer.granted
    onlyBadPartFails(granted, isGranted)
    // What the store has is what was answered: the failed part was rolled back.
    assert.equal(await leaseCount(driver), LENGTH - 200)
    succeedAgain(database)
    const leases = (await driver.acquire(claims, newCall())).map((answer, index) => {
      assert.ok(!(answer instanceof Error) && answer.granted)
      return { lockName: nameOf(index), claimId: claims[index]?.claimId as string, fencingToken: answer.fencingToken }
    })

    failOn(database, 'UPDATE', 'holdfast_leases', 'NEW.lock_name')
    const renewals = leases.map((lease) => ({ ...lease, ttlMs: 60_000 }))
    onlyBadPartFails(await driver.renew(renewals), (answer) => answer === 'renewed')
    succeedAgain(database)

    failOn(database, 'DELETE', 'holdfast_leases', 'OLD.lock_name')
    onlyBadPartFails(await driver.release(leases), (answer) => answer === true)
    assert.equal(await leaseCount(driver), 200)
    succeedAgain(database)

    failOn(database, 'INSERT', 'holdfast_rates', 'NEW.name')
    const limits = [{ limit: 1, periodMs: 60_000, burst: 1 }]
    const requests = claims.map(({ lockName }) => ({ name: lockName, cost: 1, limits }))
    const isAllowed = (answer: RateAnswer | Error): boolean => !(answer instanceof Error) && answer.allowed
    onlyBadPartFails((await driver.consume?.(requests)) ?? [], isAllowed)
    succeedAgain(database)
    // What was answered was taken, and nothing else.
    const again = (await driver.consume?.(requests)) ?? []
    assert.deepEqual(
      again.map(isAllowed),
      again.map((_, index) => isInBadPart(index)),
    )
  })

  it('rejects if every part fails', async () => {
    await using context = createContext()
    const { driver, database } = await open(context)
    database.exec(`
      CREATE TRIGGER fails BEFORE INSERT ON holdfast_leases BEGIN SELECT RAISE(ABORT, 'no room for this one'); END
    `)
    const claims = Array.from({ length: LENGTH }, (_, index) => claimOn(nameOf(index)))
    await assert.rejects(driver.acquire(claims, newCall()), { name: 'StoreError', message: /no room for this one/ })
    await driver.close()
    await assert.rejects(driver.acquire(claims, newCall()), { name: 'ClosedError' })
  })

  it('a group of claims stays in one transaction', async () => {
    await using context = createContext()
    const { driver } = await open(context)
    const inGroup = (index: number): boolean => index >= 150 && index < 250
    const claims = Array.from({ length: LENGTH }, (_, index) =>
      claimOn(nameOf(index), inGroup(index) ? { group: 'all or none' } : {}),
    )
    const last = claimOn(nameOf(249))
    await driver.acquire([last], newCall())
    const answers = await driver.acquire(claims, newCall())
    answers.forEach((answer, index) => {
      assert.ok(!(answer instanceof Error))
      assert.equal(answer.granted, !inGroup(index), nameOf(index))
    })
    const held = await driver.inspect({ prefix: 'name 2', pageSize: 100 })
    assert.deepEqual(
      held.leases.filter(({ lockName }) => lockName < nameOf(250)).map(({ claimId }) => claimId),
      [last.claimId],
    )
  })

  it('its claims queue in their order, even if another process has the write lock at first', async () => {
    await using context = createContext()
    const { driver } = await open(context)
    await driver.acquire([claimOn('name')], newCall())
    const other = await context.database()
    other.exec('BEGIN IMMEDIATE')
    const claims = Array.from({ length: LENGTH }, () => claimOn('name', { waiterTtlMs: 60_000 }))
    const answers = driver.acquire(claims, newCall())
    // Long enough for several attempts at the write lock.
    await sleep(50)
    other.exec('ROLLBACK')
    assert.deepEqual(
      (await answers).map((answer) => (answer as AcquireAnswer).granted),
      claims.map(() => false),
    )
    assert.deepEqual(await queueOf(driver), claims.map(idOf))
  })

  it('its parts together wait no longer for the write lock than one short list', async () => {
    await using context = createContext()
    const { driver } = await open(context)
    const other = await context.database()
    other.exec('BEGIN IMMEDIATE')
    const startedMs = performance.now()
    const claims = Array.from({ length: LENGTH }, (_, index) => claimOn(nameOf(index)))
    await assert.rejects(driver.acquire(claims, newCall()), /another process has kept the write lock for too long/)
    other.exec('ROLLBACK')
    const tookMs = performance.now() - startedMs
    assert.ok(tookMs < MAX_BUSY_MS * 1.9, `${tookMs} ms`)
  })

  it('gives the event loop a turn between two parts when one is due', async () => {
    await using context = createContext()
    let nowMs = 0
    let turns = 0
    const clock: Clock = {
      ...systemClock,
      // Every reading of the clock is 11 ms later, so a turn is due after each of them.
      now() {
        nowMs += 11
        return { monotonicMs: nowMs, wallMs: Date.now() }
      },
      nextTurn(run) {
        turns += 1
        setImmediate(run)
      },
    }
    const { driver } = await open(context, clock)
    const before = turns
    await driver.acquire(
      Array.from({ length: LENGTH }, (_, index) => claimOn(nameOf(index))),
      newCall(),
    )
    assert.ok(turns - before >= 2, `${turns - before} turns`)
  })
})

async function open(context: SqliteContext, clock?: Clock): Promise<{ driver: Driver; database: SqliteDatabase }> {
  const database = await context.database()
  const driver = await context.opened(sqliteDriver({ database, ...(clock && { clock }) }))
  return { driver, database }
}

const nameOf = (index: number): string => `name ${String(index).padStart(3, '0')}`

const idOf = ({ claimId }: Pick<Claim, 'claimId'>): string => claimId

/** A trigger of the caller's own, which refuses one row. */
function failOn(database: SqliteDatabase, change: string, table: string, column: string): void {
  database.exec(`
    CREATE TRIGGER fails BEFORE ${change} ON ${table} WHEN ${column} = '${nameOf(BAD)}'
    BEGIN SELECT RAISE(ABORT, 'no room for this one'); END
  `)
}

function succeedAgain(database: SqliteDatabase): void {
  database.exec('DROP TRIGGER fails')
}

function onlyBadPartFails<Answer>(
  answers: readonly (Answer | Error)[],
  succeeded: (answer: Answer | Error) => boolean,
): void {
  assert.equal(answers.length, LENGTH)
  answers.forEach((answer, index) => {
    if (!isInBadPart(index)) assert.ok(succeeded(answer), `${nameOf(index)}: ${answer}`)
    else assert.match(String(answer), /^StoreError: .*no room for this one/, nameOf(index))
  })
}

async function leaseCount(driver: Driver): Promise<number> {
  let count = 0
  for (let after: string | undefined; ; ) {
    const page = await driver.inspect({ pageSize: 1_000, ...(after !== undefined && { after }) })
    count += page.leases.length
    after = page.next
    if (after === undefined) return count
  }
}

async function queueOf(driver: Driver): Promise<string[]> {
  const ids: string[] = []
  for (let after: string | undefined; ; ) {
    const page = await driver.inspect({ lockName: 'name', ...(after !== undefined && { after }) })
    ids.push(...page.waiters.map(idOf))
    after = page.next
    if (after === undefined) return ids
  }
}
