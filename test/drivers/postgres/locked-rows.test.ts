import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Driver, Grant } from '../../../src/core/driver.ts'
import { parseEvents } from '../../../src/drivers/postgres/notify-connection.ts'
import { migratePostgres, openPostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { DistributedLock } from '../../../src/primitives/lock/distributed-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, granted, leasesOn, unique, until } from '../../harness/postgres-context.ts'

const url = inject('servers').postgres ?? ''
const schema = `rows_${randomBytes(6).toString('hex')}`
let pool: pg.Pool
let driver: Driver

beforeAll(async () => {
  pool = new pg.Pool({ connectionString: url, max: 20, options: `-c search_path=${schema}` })
  await migratePostgres({ client: pool, schema })
  driver = postgresDriver({ client: pool, schema })
})
afterAll(async () => {
  await driver.close()
  await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
  await pool.end()
})

const notKnown = { code: 'STORE_UNAVAILABLE', retryable: true }

describe.concurrent('postgres: a row that another transaction keeps locked', () => {
  it('failure 44: costs a list of renewals only its own answer', async () => {
    const leases = await acquireAll(20)
    const [locked, ...others] = leases.map(({ lockName }) => lockName) as [string, ...string[]]
    await using _ = await openTransaction(LOCK, locked)
    const before = await endsOf(others)
    const answers = await driver.renew(leases.map((lease) => ({ ...lease, ttlMs: 120_000 })))
    assert.match(String(answers[0]), new RegExp(`"${locked}".* locked by another transaction`))
    assert.deepEqual(answers.slice(1), Array(19).fill('renewed'))
    const after = await endsOf(others)
    assert.ok(after.every((endMs, index) => endMs > (before[index] as number) + 30_000))
  })

  it('failure 44: costs a list only its own answer, also if it is a row of a lease or of a waiter', async () => {
    const names = Array.from({ length: 5 }, (_, index) => unique(`part-${index}`)) as [string, ...string[]]
    const hold = async (mode: 'shared' | 'exclusive') => {
      const claims = names.map((name) => ({ ...claimOn(name), mode }))
      const answers = await driver.acquire(claims, newCall())
      return claims.map((claim, index) => ({ ...claim, fencingToken: (answers[index] as Grant).fencingToken }))
    }
    const readers = await hold('shared')
    {
      await using _ = await openTransaction(`SELECT FROM holdfast_leases WHERE lock_name = $1 FOR UPDATE`, names[0])
      const [first, ...others] = await driver.renew(readers.map((lease) => ({ ...lease, ttlMs: 1_000 })))
      assert.match(String(first), /locked by another transaction/)
      assert.deepEqual(others, Array(4).fill('renewed'))
    }
    await driver.release(readers)
    const leases = await hold('exclusive')
    await driver.acquire([claimOn(names[0], 60_000)], newCall())
    await using _ = await openTransaction(`SELECT FROM holdfast_waiters WHERE lock_name = $1 FOR UPDATE`, names[0])
    const [first, ...others] = await driver.release(leases)
    assert.match(String(first), /locked by another transaction/)
    assert.deepEqual(others, Array(4).fill(true))
  })

  it('is waited for by a list that keeps no other rows locked: it does not sweep expired rows first', async () => {
    const own = `${schema}_wait`
    await migratePostgres({ client: pool, schema: own })
    const table = `${own}.distributed_locks`
    await pool.query(`INSERT INTO ${table} (lock_name, holder_id, acquired_at, expires_at)
      SELECT 'ended:' || i, 'dead', now() - interval '1 minute', now() - interval '30 s'
      FROM generate_series(1, 5) AS i`)
    // What the driver's call does for each row that it waits for. Other calls sweep one time in eight.
    await pool.query(`SELECT ${own}.holdfast_acquire(
      ARRAY['n' || i], ARRAY['c' || i], '{h}', '{f}', '{NULL}', '{1}', '{60000}', '{0}', '{NULL}',
      'none', false, 50, clock_timestamp()) FROM generate_series(1, 100) AS i`)
    const left = `SELECT count(*)::integer AS left FROM ${table} WHERE holder_id = 'dead'`
    assert.deepEqual((await pool.query(left)).rows, [{ left: 5 }])
    await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${own} CASCADE`)
  })

  for (const level of ['repeatable read', 'serializable']) {
    it(`failure 44: costs a list no answer if it changes while it is waited for, by default ${level}`, async () => {
      const leases = await acquireAll(20)
      const options = `-c search_path=${schema} -c default_transaction_isolation=${level.replace(' ', '\\ ')}`
      const strictPool = new pg.Pool({ connectionString: url, options })
      const strict = postgresDriver({ client: strictPool, schema })
      await strict.inspect({})
      const calls = {
        renew: () => strict.renew(leases.map((lease) => ({ ...lease, ttlMs: 120_000 }))),
        acquire: () =>
          strict.acquire(
            leases.map(({ lockName }) => claimOn(lockName)),
            newCall(),
          ),
        release: () => strict.release(leases),
      }
      for (const [name, call] of Object.entries(calls)) {
        const change = `UPDATE distributed_locks SET metadata = '{}' WHERE lock_name = $1`
        const transaction = await openTransaction(change, leases[0]?.lockName as string)
        let isAnswered = false
        const answered = (call() as Promise<unknown[]>).finally(() => {
          isAnswered = true
        })
        await until('it to wait for the row', async () => isAnswered || (await waitingFor(transaction)) === 1)
        await transaction.commit()
        const others = (await answered).slice(1)
        assert.ok(!others.some((answer) => answer instanceof Error), name)
      }
      await strict.close()
      await strictPool.end()
    })
  }

  it('failure 44: costs a process that one lease only', async () => {
    const own = postgresDriver({ client: pool, schema })
    const lock = new DistributedLock({ driver: own })
    const names = Array.from({ length: 12 }, (_, index) => unique(`kept-${index}`))
    const held = { timeoutSeconds: 1.5, heartbeat: true }
    const leases = await Promise.all(names.map((name) => lock.hold(name, held)))
    await using _ = await openTransaction(LOCK, names[0] as string)
    await until('the one to be lost', () => leases[0]?.held === false)
    assert.deepEqual(
      leases.slice(1).map((lease) => lease.held),
      Array(11).fill(true),
    )
    await lock.close()
    await own.close()
  })

  it('failure 44: costs a list of claims only its own answer: of a held, a free and a new name', async () => {
    const [free, held] = [unique('b-free'), unique('d-held')]
    await granted(driver, { ...claimOn(free), ttlMs: 1 })
    const holder = claimOn(held)
    await granted(driver, holder)
    await until('its end', async () => (await leasesOn(driver, free)).length === 0)
    const made = unique('a-made')
    await using _ = await openTransaction(LOCK, free)
    await using __ = await openTransaction(`SELECT acquire_lock($1, 'open')`, made)
    await using ___ = await openTransaction(LOCK, held)
    const others = [claimOn(unique('a0')), claimOn(unique('c')), claimOn(unique('e'))]
    const asked = [claimOn(made), claimOn(free), claimOn(held), ...others]
    const answers = await driver.acquire(asked, newCall())
    for (const answer of answers.slice(0, 2)) assert.match(String(answer), /locked by another transaction/)
    const refusal = answers[2] as { granted: boolean; holder?: { claimId: string } }
    // The holder can be read although the row is locked.
    assert.deepEqual([refusal.granted, refusal.holder?.claimId], [false, holder.claimId])
    for (const [index, { lockName, claimId }] of others.entries()) {
      assert.equal((answers[3 + index] as Grant).granted, true)
      assert.equal((await leasesOn(driver, lockName))[0]?.claimId, claimId)
    }
  })

  it('failure 44: costs a list of releases only its own answer', async () => {
    const leases = await acquireAll(5)
    const { lockName, claimId } = leases[2] as (typeof leases)[0]
    {
      await using _ = await openTransaction(LOCK, lockName)
      const answers = await driver.release(leases)
      assert.match(String(answers[2]), /locked by another transaction/)
      assert.deepEqual(
        answers.filter((_, index) => index !== 2),
        [true, true, true, true],
      )
    }
    assert.equal((await leasesOn(driver, lockName))[0]?.claimId, claimId)
    assert.deepEqual(await driver.release(leases), [false, false, true, false, false])
  })

  it('lets no claim of a list overtake one before it on the same name', async () => {
    for (const freeAfterMs of [60, 75, 90]) {
      const [lease] = await acquireAll(1)
      assert.ok(lease)
      const transaction = await openTransaction(LOCK, lease.lockName)
      const asked = driver.acquire(
        [claimOn(lease.lockName, 60_000), claimOn(lease.lockName, 60_000), claimOn(unique('other'))],
        newCall(),
      )
      await sleep(freeAfterMs)
      await transaction.commit()
      const [first, second, other] = await asked
      assert.ok(!(first instanceof Error) || second instanceof Error, String(second))
      assert.equal((other as Grant).granted, true)
    }
  })

  it('fails a call of its own with an error that says why, and nothing is half-held', async () => {
    const [lease] = await acquireAll(1)
    assert.ok(lease)
    const made = unique('made')
    {
      await using _ = await openTransaction(LOCK, lease.lockName)
      await using __ = await openTransaction(`SELECT acquire_lock($1, 'open')`, made)
      await assert.rejects(driver.renew([{ ...lease, ttlMs: 500 }]), notKnown)
      await assert.rejects(driver.release([lease]), notKnown)
      await assert.rejects(driver.acquire([claimOn(made)], newCall()), {
        ...notKnown,
        message: /locked by another transaction/,
      })
    }
    assert.deepEqual(await leasesOn(driver, made), [])
    assert.deepEqual(await driver.release([lease]), [true])
  })

  it('is said to each of those that wait for it, and not that a file grows', async () => {
    const [reader, exclusive] = [unique('reader'), unique('exclusive')]
    const readers = [1, 2, 3].map(() => ({ ...claimOn(reader), mode: 'shared' as const }))
    const held = await Promise.all(readers.map((claim) => granted(driver, claim)))
    await granted(driver, { ...claimOn(exclusive), ttlMs: 1 })
    await using _ = await openTransaction(LOCK, reader)
    await using __ = await openTransaction(LOCK, exclusive)
    const calls = [
      ...readers.map((claim, at) => driver.renew([{ ...claim, fencingToken: held[at]?.fencingToken ?? 0 }])),
      ...readers.map((claim) => driver.release([claim])),
      ...readers.map(() => driver.acquire([claimOn(exclusive)], newCall())),
    ]
    for (const answer of await Promise.allSettled(calls)) {
      assert.match(String(answer.status === 'rejected' && answer.reason), /locked by another transaction/)
    }
  })

  it('costs a process that opened its driver by URL no other lease, however many claims wait for the row', async () => {
    const opened = await openPostgres(`${url}?holdfast_schema=${schema}`)
    const lock = new DistributedLock({ driver: opened })
    const made = unique('made')
    await using _ = await openTransaction(`SELECT acquire_lock($1, 'open')`, made)
    const lease = await lock.hold(unique('kept'), { timeoutSeconds: 2, heartbeat: true })
    const claims = Array.from({ length: 48 }, () => opened.acquire([claimOn(made)], newCall()))
    // Each waits for half a second.
    await Promise.allSettled(claims)
    assert.equal(lease.held, true)
    await lock.close()
    await opened.close()
  })

  it('blocks no waiter that keeps or leaves its place, and no claim that is refused without waiting', async () => {
    const holder = claimOn(unique('held'))
    const { lockName } = holder
    await granted(driver, holder)
    const [first, second] = [claimOn(lockName, 60_000), claimOn(lockName, 60_000)]
    await driver.acquire([first], newCall())
    await driver.acquire([second], newCall())
    await using _ = await openTransaction(LOCK, lockName)
    const places = (await driver.acquire([second], newCall())).map((answer) => 'ahead' in answer && answer.ahead)
    assert.deepEqual(places, [1])
    const both = (await driver.acquire([second, first, claimOn(lockName)], newCall())).map(
      (answer) => 'ahead' in answer && answer.ahead,
    )
    assert.deepEqual(both, [1, 0, false])
    assert.deepEqual(await driver.release([first]), [false])
    assert.deepEqual(await driver.release([second, claimOn(lockName)]), [false, false])
    assert.deepEqual((await driver.inspect({ lockName })).waiters, [])
  })

  it('is not left behind by an acquire_lock that was refused', async () => {
    const [lease] = await acquireAll(1)
    assert.ok(lease)
    await using transaction = await openTransaction(`SELECT acquire_lock($1, 'psql') AS got`, lease.lockName)
    assert.deepEqual(transaction.rows, [{ got: false }])
    assert.deepEqual(await driver.renew([{ ...lease, ttlMs: 60_000 }]), ['renewed'])
  })
})

describe.concurrent('postgres: claims and renewals', () => {
  it('failure 45: a renewal does not wait for claims that are joining the queue', async () => {
    const [lease] = await acquireAll(1)
    assert.ok(lease)
    const { lockName } = lease
    const renewal = { ...lease, ttlMs: 60_000 }
    await driver.acquire([claimOn(lockName, 60_000)], newCall())
    // What the driver's call does, in a transaction that is not committed yet.
    const join = `SELECT holdfast_acquire(
      ARRAY[$1, $1], '{a,b}', '{h,h}', '{f,f}', '{NULL,NULL}', '{1,1}', '{60000,60000}', '{60000,60000}',
      '{NULL,NULL}', 'none', false)`
    for (const text of [join, join.replaceAll(/\{(\w+),\w+\}/g, '{$1}').replace('$1, $1', '$1')]) {
      await using _ = await openTransaction(text, lockName)
      assert.deepEqual(await driver.renew([renewal]), ['renewed'])
      assert.deepEqual(await driver.renew([renewal, renewal]), ['renewed', 'renewed'])
    }
  })

  it('failure 68: a release is not refused while claims join the queue without a pause', async () => {
    const [lease] = await acquireAll(1)
    assert.ok(lease)
    const { lockName } = lease
    const waiter = claimOn(lockName, 60_000)
    await driver.acquire([waiter], newCall())
    // What the driver's call does, in transactions that take a while. There is always one of them.
    let isOver = false
    let joined = 0
    async function join(): Promise<void> {
      const client = await pool.connect()
      while (!isOver) {
        await client.query('BEGIN')
        await client.query(
          `SELECT holdfast_acquire(ARRAY[$1], ARRAY[$2], '{h}', '{f}', '{NULL}', '{1}', '{60000}', '{60000}', '{NULL}',
            'none', false)`,
          [lockName, unique('joins')],
        )
        joined += 1
        await sleep(40 + 40 * Math.random()) // so that the next one begins before this one ends
        await client.query('COMMIT')
      }
      client.release()
    }
    const joining = Array.from({ length: 8 }, join)
    await until('them to join', () => joined >= 24)
    const before = joined
    assert.deepEqual(await driver.release([lease]), [true])
    // Each of them may have begun before the release, and once more while it was on its way to the server.
    assert.ok(joined - before <= 16, `${joined - before} claims have overtaken it`)
    assert.equal((await leasesOn(driver, lockName))[0]?.claimId, waiter.claimId)
    isOver = true
    await Promise.all(joining)
  })
})

describe.concurrent('postgres: a place in the queue', () => {
  it('that ends while its claim waits for the row is kept, because the claim asked in time', async () => {
    const [holder] = await acquireAll(1)
    assert.ok(holder)
    const { lockName } = holder
    const [first, second] = [claimOn(lockName, 60_000), claimOn(lockName, 60_000)]
    for (const claim of [first, second]) await driver.acquire([claim], newCall())
    const end = (table: string, claimId: string) =>
      pool.query(`UPDATE ${table} SET expires_at = clock_timestamp() WHERE claim_id = $1`, [claimId])
    await end('distributed_locks', holder.claimId)
    const transaction = await openTransaction(LOCK, lockName)
    const asked = granted(driver, first)
    await until('it to wait for the row', async () => (await waitingFor(transaction)) === 1)
    await end('holdfast_waiters', first.claimId)
    await transaction.commit()
    assert.ok((await asked).fencingToken > holder.fencingToken)
  })
})

describe.concurrent('postgres: a claim that joins the queue of a lock that it hands over', () => {
  it('does not wait for those that wait for it', async () => {
    const [holder] = await acquireAll(1)
    assert.ok(holder)
    const { lockName } = holder
    const [dead, next] = [claimOn(lockName, 60_000), claimOn(lockName, 60_000)]
    for (const claim of [dead, next]) await driver.acquire([claim], newCall())
    for (const [table, { claimId }] of [
      ['distributed_locks', holder],
      ['holdfast_waiters', dead],
    ] as const)
      await pool.query(`UPDATE ${table} SET expires_at = clock_timestamp() WHERE claim_id = $1`, [claimId])
    // The first one stops when it hands the lock over. By then the second one waits for it.
    const transaction = await openTransaction(
      `SELECT FROM holdfast_waiters WHERE lock_name = $1 AND place =
      (SELECT max(place) FROM holdfast_waiters WHERE lock_name = $1) FOR UPDATE`,
      lockName,
    )
    const first = driver.acquire([claimOn(lockName, 60_000)], newCall())
    await until('the first one to stop', async () => (await waitingFor(transaction)) === 1)
    const second = driver.acquire([claimOn(lockName, 60_000)], newCall())
    await until('the second one to wait for it', async () => (await waitersFor(transaction)) === 2)
    await transaction.commit()
    const ahead = (await Promise.all([first, second])).flat().map((answer) => 'ahead' in answer && answer.ahead)
    assert.deepEqual(ahead, [0, 1])
    assert.equal((await leasesOn(driver, lockName))[0]?.claimId, next.claimId)
  })
})

describe.concurrent('postgres: a hand-over that is not committed yet', () => {
  it('grants readers that ask at that moment, and none waits for another', async () => {
    const [writer] = await acquireAll(1)
    assert.ok(writer)
    const { lockName } = writer
    const readers = Array.from({ length: 4 }, () => ({ ...claimOn(lockName, 60_000), mode: 'shared' as const }))
    await driver.acquire(readers, newCall())
    const transaction = await openTransaction(RELEASE, lockName)
    const asked = readers.map((reader) => granted(driver, reader))
    await until('all to wait for the row', async () => (await waitingFor(transaction)) === readers.length)
    await transaction.commit()
    const tokens = (await Promise.all(asked)).map(({ fencingToken }) => fencingToken)
    assert.equal(new Set(tokens).size, readers.length)
  })

  it('admits the waiters behind one that leaves at that moment', async () => {
    const [holder] = await acquireAll(1)
    assert.ok(holder)
    const { lockName } = holder
    const reader = () => ({ ...claimOn(lockName, 60_000), mode: 'shared' as const })
    const [first, writer, last] = [reader(), claimOn(lockName, 60_000), reader()]
    for (const claim of [first, writer, last]) await driver.acquire([claim], newCall())
    const transaction = await openTransaction(RELEASE, lockName)
    let left = false
    const leaving = driver.release([writer]).then(() => {
      left = true
    })
    await until('it to wait for the row, or to be gone', async () => left || (await waitingFor(transaction)) === 1)
    await transaction.commit()
    await leaving
    const holders = (await leasesOn(driver, lockName)).map(({ claimId }) => claimId)
    assert.deepEqual(holders.sort(), [first.claimId, last.claimId].sort())
  })

  it('releases the lease of a waiter that leaves at that moment', async () => {
    const [holder] = await acquireAll(1)
    assert.ok(holder)
    const { lockName } = holder
    const waiter = claimOn(lockName, 60_000)
    await driver.acquire([waiter], newCall())
    const transaction = await openTransaction(RELEASE, lockName)
    const leaving = driver.release([waiter])
    await until('it to wait for the row', async () => (await waitingFor(transaction)) === 1)
    await transaction.commit()
    assert.deepEqual(await leaving, [true])
    assert.deepEqual(await leasesOn(driver, lockName), [])
  })

  it('a waiter that joins while the lock is taken by force learns when to ask again', async () => {
    const [holder] = await acquireAll(1)
    assert.ok(holder)
    const { lockName } = holder
    await driver.acquire([claimOn(lockName, 1)], newCall())
    const woken: (string | undefined)[] = []
    await using _client = await listeningClient('joins_late', (payload) => {
      woken.push(parseEvents(payload)[0]?.claimId)
    })
    const join = `SELECT holdfast_acquire(
      ARRAY[$1], '{joins}', '{h}', '{f}', '{NULL}', '{1}', '{60000}', '{60000}', '{NULL}', 'joins_late:x', false)`
    const transaction = await openTransaction(join, lockName)
    const taken = driver.acquire(
      [{ ...claimOn(lockName), forceUpTo: Number.MAX_SAFE_INTEGER, ttlMs: 1_000 }],
      newCall(),
    )
    await until('the new holder to wait for the row', async () => (await waitingFor(transaction)) === 1)
    await transaction.commit()
    await taken
    await until('a wake-up', () => woken.includes('joins'))
  })
})

/** What the driver's call does, in a transaction that is not committed yet. */
const RELEASE = `SELECT holdfast_change_leases(ARRAY[lock_name], ARRAY[claim_id], ARRAY[fencing_token], NULL, false)
  FROM distributed_locks WHERE lock_name = $1`

/** How many transactions wait for this one to end. */
async function waitingFor({ pid }: { readonly pid: number }): Promise<number> {
  const text = 'SELECT count(*)::integer AS waiting FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))'
  return (await pool.query(text, [pid])).rows[0].waiting
}

/** As `waitingFor`, and those that wait for these. */
async function waitersFor({ pid }: { readonly pid: number }): Promise<number> {
  const text = `WITH RECURSIVE waiting (pid) AS (SELECT $1::integer UNION
    SELECT a.pid FROM waiting w, pg_stat_activity a WHERE w.pid = ANY (pg_blocking_pids(a.pid)))
    SELECT count(*)::integer - 1 AS waiting FROM waiting`
  return (await pool.query(text, [pid])).rows[0].waiting
}

/** A client of its own that listens on a channel. */
async function listeningClient(channel: string, onMessage: (payload: string) => void) {
  const client = new pg.Client({ connectionString: url, options: `-c search_path=${schema}` })
  await client.connect()
  client.on('notification', ({ payload = '' }) => onMessage(payload))
  await client.query(`LISTEN ${channel}`)
  return Object.assign(client, { [Symbol.asyncDispose]: () => client.end() })
}

const LOCK = 'SELECT FROM distributed_locks WHERE lock_name = $1 FOR UPDATE'

interface OpenTransaction extends AsyncDisposable {
  readonly rows: unknown[]
  readonly pid: number
  commit(): Promise<void>
}

/** A statement in a transaction that stays open until the end of the block. */
async function openTransaction(text: string, lockName: string): Promise<OpenTransaction> {
  const client = await pool.connect()
  await client.query('BEGIN')
  const { pid } = (await client.query('SELECT pg_backend_pid() AS pid')).rows[0]
  const { rows } = await client.query(text, [lockName])
  const end = async (how: 'COMMIT' | 'ROLLBACK'): Promise<void> => {
    await client.query(how)
    client.release()
  }
  return { rows, pid, commit: () => end('COMMIT'), [Symbol.asyncDispose]: () => end('ROLLBACK') }
}

async function acquireAll(count: number) {
  const claims = Array.from({ length: count }, (_, index) => claimOn(unique(`lease-${index}`)))
  const answers = await driver.acquire(claims, newCall())
  return claims.map((claim, index) => ({ ...claim, fencingToken: (answers[index] as Grant).fencingToken }))
}

const endsOf = async (names: readonly string[]): Promise<number[]> =>
  Promise.all(names.map(async (name) => Number((await leasesOn(driver, name))[0]?.expiresAtMs)))
