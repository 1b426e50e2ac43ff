import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { LeaseRecord } from '../../../src/core/driver.ts'
import { writeActivityComment } from '../../../src/drivers/postgres-advisory/activity-comment.ts'
import { advisoryKey, releaseRequestKey } from '../../../src/drivers/postgres-advisory/held-locks.ts'
import { advisoryStatements } from '../../../src/drivers/postgres-advisory/statements.ts'
import { openPostgresAdvisory } from '../../../src/drivers/postgres-advisory.ts'
import { DistributedLock, type LockOptions } from '../../../src/index.ts'
import { unique, until } from '../../harness/postgres-context.ts'

const SLOW = { timeout: 60_000 }
const url = inject('servers').postgres ?? ''
let root: pg.Pool
beforeAll(() => {
  root = new pg.Pool({ connectionString: url, max: 4 })
})
afterAll(() => root.end())

const BY = { by: 'ada', endSession: false }

describe.concurrent('postgres-advisory: forced releases', SLOW, () => {
  it('a holder without heartbeat keeps its lock, and the error says what would end with its session', async () => {
    await using scene = await openScene({ heartbeat: false })
    const { held, other, name, operator } = scene
    await assert.rejects(operator.forceRelease(name, { by: 'ada' }), {
      code: 'STORE_UNAVAILABLE',
      retryable: false,
      message: /is still held by the session pid \d+: it did not let go within 7 s.*--end-session/,
    })
    assert.deepEqual([held.held, other.held], [true, true])
    assert.equal((await operator.forceRelease(name, { by: 'ada', endSession: true })).length, 1)
    await until('the session to end', () => !held.held && !other.held)
    assert.match(String(held.signal.reason), /was lost/)
  })

  it('rule 17: a holder lets go of the one lease when it renews any of its leases', async () => {
    await using scene = await openScene({ heartbeat: false })
    const { held, other, name, operator } = scene
    const ended = operator.forceRelease(name, { by: 'ada' })
    await until('the holder to look', async () => {
      assert.equal(await other.extend(60), true)
      return !held.held
    })
    assert.equal((await ended).length, 1)
    assert.match(String(held.signal.reason), /the role \w+ ended it/)
    assert.equal(other.held, true)
  })

  it('a renewal is one statement while no forced release is asked for', async () => {
    await using scene = await openScene({ heartbeat: false })
    const { held, driver, name } = scene
    const pid = String((await scene.lease()).session).replace('pid ', '')
    const { claimId } = await scene.lease()
    const { fencingToken } = held
    // Other tests force releases in the same database now and then.
    await until('a renewal while there is no request', async () => {
      assert.deepEqual(await driver.renew([{ lockName: name, claimId, fencingToken, ttlMs: 30_000 }]), ['held'])
      const { rows } = await root.query('SELECT query FROM pg_stat_activity WHERE pid = $1', [pid])
      return /EXECUTE holdfast_prove_/.test(rows[0].query)
    })
  })

  it('the flag of a forced release is not shown as a lock, although a holder has it when it renews', async () => {
    const client = new pg.Client(url)
    await client.connect()
    const entry = { lockName: unique('shown'), claimId: 'c', holderId: 'h', shared: true }
    const key = advisoryKey(entry.lockName)
    // Shared, so that it does not disturb other tests.
    const take = `SELECT pg_advisory_lock_shared(${key}), pg_advisory_lock_shared(7813544519228563563)`
    await client.query(`${writeActivityComment([entry], 1_000)}${take}`)
    const driver = await openPostgresAdvisory(url)
    const { processID: pid } = client as unknown as { processID: number }
    const { leases } = await driver.inspect({ pageSize: 1_000 })
    assert.deepEqual(
      leases.filter(({ session }) => session === `pid ${pid}`).map(({ lockName }) => lockName),
      [entry.lockName],
    )
    await Promise.all([client.end(), driver.close()])
  })

  it('a session is not ended if it was granted a lock since it was looked at', async () => {
    await using scene = await openScene({ heartbeat: false })
    const { held, lock, name, driver } = scene
    const [seen] = (await driver.inspect({ lockName: name })).leases
    const pid = String(seen?.session).replace('pid ', '')
    // The token that the look shows is that of the session's last grant: of the lock "other".
    const stale = String(scene.other.fencingToken)
    await lock.hold(unique('newer'))
    const values = [pid, advisoryKey(name), stale, '0']
    assert.equal((await root.query(advisoryStatements.end_session, values)).rowCount, 0)
    assert.equal(held.held, true)
    assert.equal(await held.extend(10), true)
  })

  it('rule 15: a role that may not end the session cannot make the holder let go', async () => {
    await using scene = await openScene({})
    const { held, name, driver } = scene
    await using stranger = await newRole()
    const [lease] = (await driver.inspect({ lockName: name })).leases
    // As a forced release does it, without the right to it.
    const { connection } = stranger
    await connection.query(advisoryStatements.request_release, [`{${releaseRequestKey(lease as LeaseRecord)}}`])
    await connection.query(advisoryStatements.raise_flag)
    const looked = `SELECT FROM pg_stat_activity WHERE pid = $1 AND query LIKE '%*/WITH locks AS MATERIALIZED%'`
    const pid = String(lease?.session).replace('pid ', '')
    await until('the holder to look', async () => (await root.query(looked, [pid])).rowCount === 1)
    assert.equal(held.held, true)
    assert.equal(await held.extend(10), true)
    const reasons: string[] = []
    scene.lock.on('lost', ({ reason }) => reasons.push(reason))
    await root.query(`GRANT ${scene.role} TO ${stranger.name}`)
    await until('the holder to let go', () => !held.held)
    assert.deepEqual(reasons, ['session'])
    assert.match(String(held.signal.reason), new RegExp(`the role ${stranger.name} ended it`))
  })

  it('a role without the privilege gets the GRANT, and nothing is asked or ended', async () => {
    await using scene = await openScene({})
    await using stranger = await newRole()
    const asStranger = await openPostgresAdvisory(stranger.url)
    try {
      const lease = { ...(await scene.lease()) }
      const [answer] = (await asStranger.extensions?.forceRelease?.([lease], { ...BY, endSession: true })) ?? []
      assert.ok(answer instanceof Error)
      assert.ok(answer.message.includes(`GRANT pg_signal_backend TO "${stranger.name}"`), answer.message)
      // Its name is not visible to that role, but that it is held is.
      const [shown] = (await asStranger.inspect({ lockName: scene.name })).leases
      assert.match(String(shown?.holderId), /^pid \d+$/)
      assert.equal(scene.held.held, true)
      await root.query(`GRANT pg_signal_backend, pg_read_all_stats TO ${stranger.name}`)
      assert.deepEqual(await asStranger.extensions?.forceRelease?.([lease], BY), [true])
      await until('the holder to let go', () => !scene.held.held)
      assert.equal(scene.other.held, true)
    } finally {
      await asStranger.close()
    }
  })

  it('the lock of a client that is not Holdfast is shown by its process, and ended only with its session', async () => {
    const name = unique('foreign')
    await using operator = new DistributedLock({ url: url.replace('postgres:', 'postgres+advisory:') })
    const client = new pg.Client(url)
    let isOver = false
    client.on('error', () => {})
    client.on('end', () => {
      isOver = true
    })
    await client.connect()
    await client.query('SELECT pg_advisory_lock($1)', [advisoryKey(name)])
    assert.equal(await operator.isLocked(name), true)
    await assert.rejects(operator.forceRelease(name, { by: 'ada' }), {
      message: /what it holds the lock for is not visible/,
    })
    assert.equal((await operator.forceRelease(name, { by: 'ada', endSession: true })).length, 1)
    await until('its connection to end', () => isOver)
    assert.equal(await operator.isLocked(name), false)
  })
})

/** A holder with a role of its own that has two locks on one session. */
async function openScene(options: LockOptions) {
  const role = `holder_${randomBytes(5).toString('hex')}`
  await root.query(`CREATE ROLE ${role} LOGIN`)
  const advisory = url.replace('postgres:', 'postgres+advisory:')
  const driver = await openPostgresAdvisory(urlAs(role))
  const lock = new DistributedLock({ driver, holderId: role })
  const operator = new DistributedLock({ url: advisory })
  const [name, otherName] = [unique('forced'), unique('other')]
  const [held, other] = [await lock.hold(name, options), await lock.hold(otherName, options)]
  return {
    role,
    name,
    held,
    other,
    lock,
    driver,
    operator,
    lease: async () => (await driver.inspect({ lockName: name })).leases[0] as LeaseRecord,
    async [Symbol.asyncDispose]() {
      await lock.close()
      await driver.close()
      await operator.close()
      await root.query(`DROP ROLE ${role}`)
    },
  }
}

/** A role without privileges. */
async function newRole() {
  const name = `stranger_${randomBytes(5).toString('hex')}`
  await root.query(`CREATE ROLE ${name} LOGIN`)
  const connection = new pg.Client(urlAs(name))
  await connection.connect()
  return {
    name,
    url: urlAs(name),
    connection,
    async [Symbol.asyncDispose]() {
      await connection.end()
      await root.query(`DROP OWNED BY ${name}; DROP ROLE ${name}`)
    },
  }
}

const urlAs = (role: string): string => url.replace(/\/\/[^@]*@/, `//${role}@`)
