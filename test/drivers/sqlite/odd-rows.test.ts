import assert from 'node:assert/strict'
import { expect, it } from 'vitest'
import { connect } from '../../../src/connect.ts'
import { openDatabase } from '../../../src/drivers/sqlite/client.ts'
import { DistributedLock } from '../../../src/index.ts'
import { createStore, SLOW } from '../../harness/cli.ts'

/** SQLite keeps a value of any type in a column of any type. Found by chaos/fuzz. */
it.each([
  [`metadata = 'no JSON'`],
  [`metadata = -1`],
  [`metadata = x'00ff'`],
  [`fencing_token = 9e999`],
  [`fencing_token = 'text'`],
  [`acquired_at_ms = 'text'`],
  [`acquired_at_ms = 9e999, expires_at_ms = 9e999, ttl_ms = 9e999`],
  [`permits = 'many', max_permits = x'00'`],
  [`holder_id = x'00ff'`],
])('sqlite: a lease that another program wrote with %s is contention, and is shown', SLOW, async (set) => {
  await using store = createStore()
  const driver = await connect(`sqlite:${store.path}`)
  const lock = new DistributedLock({ driver })
  assert.ok((await lock.acquire('name', { timeoutSeconds: 600 })).acquired)
  const database = await openDatabase(store.path)
  database.exec(`UPDATE holdfast_leases SET ${set}`)
  database.close()
  const refused = await lock.acquire('name')
  expect(refused.acquired).toBe(false)
  const { leases } = await lock.inspect('name')
  expect(leases).toHaveLength(1)
  expect(leases[0]?.expiresAt?.getTime()).not.toBeNaN()
  for (const args of [['ls'], ['ls', '--json']]) {
    const { code, stdout, stderr } = await store.run(args)
    expect(code, stderr).toBe(0)
    expect(stdout).toContain('name')
  }
  await lock.close()
  await driver.close()
})

it.each(['constructor', '__proto__', 'toString', 'hasOwnProperty'])(
  'sqlite: %s, which every object has as a property, is a name like any other',
  async (name) => {
    await using store = createStore()
    const driver = await connect(`sqlite:${store.path}`)
    const [lock, other] = [new DistributedLock({ driver, holderId: 'first' }), new DistributedLock({ driver })]
    expect((await lock.inspect(name)).leases).toEqual([])
    const first = await lock.acquire(name)
    assert.ok(first.acquired)
    expect(await other.acquire(name)).toMatchObject({ acquired: false, holder: { lockName: name, holderId: 'first' } })
    const waiting = other.acquire(name, { blockingTimeoutSeconds: 10 })
    await first.lock.release()
    const second = await waiting
    assert.ok(second.acquired && second.lock.fencingToken > first.lock.fencingToken)
    expect((await lock.inspect(name)).leases).toMatchObject([{ fencingToken: second.lock.fencingToken }])
    for (const each of [lock, other]) await each.close()
    await driver.close()
  },
)
