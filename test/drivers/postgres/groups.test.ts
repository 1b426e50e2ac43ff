import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { AcquireAnswer, Claim, Driver } from '../../../src/core/driver.ts'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, leasesOn, unique, until } from '../../harness/postgres-context.ts'

/** Claims that are granted all or none, while other clients have locked rows or open transactions. */

const schema = `groups_${randomBytes(6).toString('hex')}`
let pool: pg.Pool
let driver: Driver

beforeAll(async () => {
  const connectionString = inject('servers').postgres ?? ''
  pool = new pg.Pool({ connectionString, max: 20, options: `-c search_path=${schema}` })
  await migratePostgres({ client: pool, schema })
  driver = postgresDriver({ client: pool, schema })
})
afterAll(async () => {
  await driver.close()
  await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
  await pool.end()
})

describe.concurrent('postgres: groups', () => {
  it('failure 44: a locked row costs its own group the answer, and leaves the rest of that group free', async () => {
    const [free, made] = [await ended('b-free'), unique('a-made')]
    await using _ = await openTransaction(LOCK, free)
    await using __ = await openTransaction(`SELECT acquire_lock($1, 'open')`, made)
    for (const locked of [free, made]) {
      const members = groupOn(unique('a0'), locked, unique('z'))
      const whole = groupOn(unique('c'), unique('d'))
      const answers = await driver.acquire([...members, ...whole], newCall())
      for (const answer of answers.slice(0, 3)) assert.match(String(answer), /locked by another transaction/)
      assert.deepEqual(answers.slice(3).map(outcome), ['granted', 'granted'])
      for (const { lockName } of [members[0], members[2]] as Claim[]) {
        assert.deepEqual(await rowsOn(lockName), [])
        await granted(driver, claimOn(lockName))
      }
    }
  })

  it('failure 44: a locked row costs no other group the answer, also in the first call of a connection', async () => {
    const made = unique('a-made')
    await using _ = await openTransaction(`SELECT acquire_lock($1, 'open')`, made)
    const { connectionString } = pool.options
    const fresh = new pg.Pool({ connectionString, max: 1, options: `-c search_path=${schema}` })
    const first = postgresDriver({ client: fresh, schema })
    try {
      const answers = await first.acquire(
        [...groupOn(unique('a0'), made), ...groupOn(unique('c'), unique('d'))],
        newCall(),
      )
      assert.deepEqual(answers.slice(2).map(outcome), ['granted', 'granted'])
    } finally {
      await first.close()
      await fresh.end()
    }
  })

  it('failure 44: a group of free names is granted before others wait for their rows', async () => {
    const names = await Promise.all(Array.from({ length: 40 }, () => ended('locked')))
    await using _ = await openTransaction(LOCK.replace('= $1', '= ANY ($1)'), names)
    const whole = groupOn(unique('whole'))
    const startedMs = performance.now()
    const asked = driver.acquire([...whole, ...names.flatMap((name) => groupOn(name))], newCall())
    await until('the grant', async () => (await rowsOn(whole[0]?.lockName ?? '')).length === 1)
    const grantedMs = performance.now() - startedMs
    const answers = await asked
    // The first pass waits for no row. The second one, after the commit, waits for a quarter of a second.
    assert.ok(grantedMs < (performance.now() - startedMs) / 2, `granted after ${grantedMs} ms`)
    assert.deepEqual(answers.map(outcome), ['granted', ...names.map(() => 'error')])
  })

  it('a group waits for a row that is locked only for a moment, and is granted', async () => {
    const members = groupOn(unique('z'), await ended('free'), unique('a'))
    assert.deepEqual(await outcomesBehind(LOCK, members), ['granted', 'granted', 'granted'])
    for (const { lockName, claimId } of members) {
      assert.deepEqual(
        (await leasesOn(driver, lockName)).map((lease) => lease.claimId),
        [claimId],
      )
    }
  })

  it('a group is refused, and writes nothing, if another client takes a name while it waits for its row', async () => {
    const members = groupOn(unique('z'), await ended('free'), unique('a'))
    const take = `SELECT acquire_lock($1, 'psql')`
    assert.deepEqual(await outcomesBehind(take, members), ['free', 'psql', 'free'])
    for (const { lockName } of [members[0], members[2]] as Claim[]) assert.deepEqual(await rowsOn(lockName), [])
  })

  it('a held name is refused although its row is locked, and the rest of its group is free', async () => {
    const holder = claimOn(unique('held'))
    await granted(driver, holder)
    await using _ = await openTransaction(LOCK, holder.lockName)
    const answers = await driver.acquire(groupOn(unique('a'), holder.lockName), newCall())
    assert.deepEqual(answers.map(outcome), ['free', 'test'])
  })

  it('a refused group writes no transaction to the log', async () => {
    const holder = claimOn(unique('held'))
    await granted(driver, holder)
    const client = await pool.connect()
    const alone = postgresDriver({ client, schema })
    await alone.inspect({})
    const xid = `SELECT xmin::text, xmax::text FROM distributed_locks WHERE lock_name = $1`
    const before = (await pool.query(xid, [holder.lockName])).rows
    const members = groupOn(unique('a'), holder.lockName, unique('z'))
    assert.deepEqual((await alone.acquire(members, newCall())).map(outcome), ['free', 'test', 'free'])
    assert.deepEqual((await pool.query(xid, [holder.lockName])).rows, before)
    await alone.close()
    client.release()
  })

  for (const level of ['repeatable read', 'serializable']) {
    it(`works where ${level} is the default, while others take and release the same names`, async () => {
      const options = `-c search_path=${schema} -c default_transaction_isolation=${level.replace(' ', '\\ ')}`
      const strictPool = new pg.Pool({ connectionString: inject('servers').postgres ?? '', options })
      const strict = postgresDriver({ client: strictPool, schema })
      const names = [unique('a'), unique('b')]
      const take = async (own: Driver, order: readonly string[]): Promise<void> => {
        for (let round = 0; round < 10; round += 1) {
          const members = groupOn(...order)
          const outcomes = (await own.acquire(members, newCall())).map(outcome)
          assert.ok(!outcomes.includes('error'), `${outcomes}`)
          assert.ok(!outcomes.includes('granted') || outcomes.every((each) => each === 'granted'), `${outcomes}`)
          await own.release(members)
        }
      }
      await Promise.all([take(strict, names), take(strict, names.toReversed()), take(driver, names)])
      await strict.close()
      await strictPool.end()
    })
  }

  it('is refused inside a transaction of the caller, and nothing is done', async () => {
    const client = new pg.Client({ connectionString: inject('servers').postgres ?? '' })
    await client.connect()
    const own = postgresDriver({ client, schema })
    await own.inspect({})
    await client.query('BEGIN')
    const members = groupOn(unique('a'), unique('b'))
    for (const answer of await own.acquire(members, newCall())) assert.match(String(answer), /inside a transaction/)
    await client.query('ROLLBACK')
    for (const { lockName } of members) assert.deepEqual(await rowsOn(lockName), [])
    await own.close()
    await client.end()
  })
})

function groupOn(...names: readonly string[]): Claim[] {
  const group = unique('group')
  return names.map((lockName) => ({ ...claimOn(lockName), group }))
}

/**
 * The answer to a group while a statement on its second name is first uncommitted, and then committed. The group waits
 * for only a quarter of a second, which a busy machine may need. Then nothing was done, and it asks again.
 */
async function outcomesBehind(text: string, members: readonly Claim[]): Promise<string[]> {
  for (;;) {
    const transaction = await openTransaction(text, (members[1] as Claim).lockName)
    let isOver = false
    const asked = driver.acquire(members, newCall()).finally(() => {
      isOver = true
    })
    await until('it to wait for the row', async () => isOver || (await waitingFor(transaction)) === 1)
    if (isOver) await transaction[Symbol.asyncDispose]()
    else await transaction.commit()
    const outcomes = (await asked).map(outcome)
    if (!outcomes.includes('error')) return outcomes
    assert.deepEqual(outcomes, ['error', 'error', 'error'])
  }
}

/** `granted`, `free`, `error`, or the holder. */
function outcome(answer: AcquireAnswer | Error): string {
  if (answer instanceof Error) return 'error'
  if (answer.granted) return 'granted'
  return answer.free ? 'free' : (answer.holder?.holderId ?? 'held')
}

/** A name whose row has a lease that has ended. */
async function ended(what: string): Promise<string> {
  const lockName = unique(what)
  await granted(driver, { ...claimOn(lockName), ttlMs: 1 })
  await until('its end', async () => (await leasesOn(driver, lockName)).length === 0)
  return lockName
}

const rowsOn = async (lockName: string): Promise<unknown[]> =>
  (await pool.query('SELECT FROM distributed_locks WHERE lock_name = $1', [lockName])).rows

const LOCK = 'SELECT FROM distributed_locks WHERE lock_name = $1 FOR UPDATE'

/** How many transactions wait for this one to end. */
async function waitingFor({ pid }: { readonly pid: number }): Promise<number> {
  const text = 'SELECT count(*)::integer AS waiting FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))'
  return (await pool.query(text, [pid])).rows[0].waiting
}

/** A statement in a transaction that stays open until the end of the block. */
async function openTransaction(text: string, lockName: string | readonly string[]) {
  const client = await pool.connect()
  await client.query('BEGIN')
  const { pid } = (await client.query('SELECT pg_backend_pid() AS pid')).rows[0] as { pid: number }
  await client.query(text, [lockName])
  const end = async (how: 'COMMIT' | 'ROLLBACK'): Promise<void> => {
    await client.query(how)
    client.release()
  }
  return { pid, commit: () => end('COMMIT'), [Symbol.asyncDispose]: () => end('ROLLBACK') }
}
