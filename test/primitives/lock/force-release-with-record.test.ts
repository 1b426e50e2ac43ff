import { randomUUID } from 'node:crypto'
import { expect, inject, test } from 'vitest'
import { connect } from '../../../src/connect.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'
import { forceReleaseWithRecord } from '../../../src/primitives/lock/force-release.ts'
import { forcedReleasesOf, recordPrefix } from '../../../src/primitives/lock/forced-release-record.ts'
import { askRedis } from '../../harness/wire.ts'

const recordBy = (by: string) => ({ by, reason: 'it hangs', at: new Date(), ended: ['worker'] })

const [redis = ''] = inject('servers').redis ?? []

test('a forced release that ended nothing leaves no record', async () => {
  const driver = memoryDriver()
  await using lock = new DistributedLock({ driver })
  await lock.acquire('a')
  const { leases: shown } = await driver.inspect({ lockName: 'a' })
  await lock.release('a')
  await lock.acquire('a')
  expect(await forceReleaseWithRecord(driver, { lockName: 'a', leases: shown, record: recordBy('ada') })).toBe(0)
  expect((await driver.inspect({})).leases.map(({ lockName }) => lockName)).toEqual(['a'])
})

test('the second try of a forced release is recorded with its own author', async () => {
  const memory = memoryDriver()
  let isDown = true
  const driver = {
    ...memory,
    acquire: (...[claims, call]: Parameters<typeof memory.acquire>) =>
      isDown && claims.some(({ lockName }) => lockName === 'a')
        ? Promise.reject(new Error('the store is gone'))
        : memory.acquire(claims, call),
  }
  await using lock = new DistributedLock({ driver: memory })
  await lock.acquire('a')
  const { leases } = await memory.inspect({ lockName: 'a' })
  await expect(forceReleaseWithRecord(driver, { lockName: 'a', leases, record: recordBy('ada') })).rejects.toThrow()
  isDown = false
  expect(await forceReleaseWithRecord(driver, { lockName: 'a', leases, record: recordBy('bob') })).toBe(1)
  const records = (await memory.inspect({ prefix: recordPrefix('a') })).leases
  expect(forcedReleasesOf('a', records).map(({ by }) => by)).toEqual(['bob'])
})

test('a lock that passed from one foreign client to another since it was shown is not ended', async () => {
  const prefix = `${randomUUID()}:`
  const driver = await connect(`${redis}?prefix=${prefix}`)
  const port = Number(new URL(redis).port)
  const take = (value: string) => askRedis({ port }, 'SET', `${prefix}a`, value, 'PX', 600_000)
  await take('one')
  const { leases } = await driver.inspect({ lockName: 'a' })
  await take('two')
  expect(await forceReleaseWithRecord(driver, { lockName: 'a', leases, record: recordBy('ada') })).toBe(0)
  expect(await askRedis({ port }, 'GET', `${prefix}a`)).toBe('two')
  await take('one')
  expect(await forceReleaseWithRecord(driver, { lockName: 'a', leases, record: recordBy('ada') })).toBe(1)
  expect(await askRedis({ port }, 'GET', `${prefix}a`)).toBe(null)
  await driver.close()
})
