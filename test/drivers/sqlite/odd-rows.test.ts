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
