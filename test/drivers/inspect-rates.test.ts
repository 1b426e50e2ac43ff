import { randomUUID } from 'node:crypto'
import { describe, expect, inject, test } from 'vitest'
import { connect } from '../../src/connect.ts'
import type { Driver, RateRecord } from '../../src/core/driver.ts'
import { makeFolder } from '../harness/folders.ts'

const { redis, cluster, postgres = '' } = inject('servers')
const folder = makeFolder('inspect-rates')
const stores: [name: string, url: string][] = [
  ['memory', 'memory:inspect-rates'],
  ['sqlite', `sqlite:${folder.path}/locks.db`],
  ['postgres', postgres],
  ['redis', redis?.[0] ?? ''],
  ['a Redis Cluster', `redis+cluster://${(cluster ?? []).map((url) => new URL(url).host).join(',')}`],
]

const perMinute = { limit: 10, periodMs: 60_000, burst: 10 }
const perHour = { limit: 100, periodMs: 3_600_000, burst: 20 }

describe.each(stores)('the rate limits of %s', (_, url) => {
  test('are listed in pages, each with its limit, while something of them is in use', async () => {
    const driver = await connect(url)
    const prefix = `${randomUUID()}{`
    const names = ['a', 'b:r1/2/3', 'ü}'].map((end) => prefix + end)
    await driver.consume?.([
      { name: names[0] as string, cost: 1, limits: [perMinute, perHour] },
      { name: names[1] as string, cost: 1, limits: [perMinute] },
      { name: names[2] as string, cost: 1, limits: [perHour] },
      // A look, which keeps nothing, and a name without the prefix.
      { name: `${prefix}look`, cost: 0, limits: [perMinute] },
      { name: `other ${prefix}`, cost: 1, limits: [perMinute] },
    ])
    const expected = [
      [names[0], perMinute],
      [names[0], perHour],
      [names[1], perMinute],
      [names[2], perHour],
    ]
    for (const pageSize of [1, 2, 1_000]) {
      const found = await readAll(driver, prefix, pageSize)
      expect(found.map(({ name, limit }) => [name, limit])).toEqual(expect.arrayContaining(expected))
      expect(new Set(found.map((each) => JSON.stringify(each))).size).toBe(expected.length)
    }
    for (const name of names) {
      await driver.consume?.([{ name, cost: 0, limits: [perMinute, perHour], change: 'reset' }])
    }
    expect(await readAll(driver, prefix, 10)).toEqual([])
    await driver.close()
  })

  test('reject a cursor that is not one of theirs', async () => {
    const driver = await connect(url)
    if (driver.name !== 'postgres')
      await expect(driver.extensions?.inspectRates?.({ after: '!' })).rejects.toThrow('after')
    await expect(driver.extensions?.inspectRates?.({ pageSize: 0 })).rejects.toThrow('pageSize')
    await driver.close()
  })
})

async function readAll(driver: Driver, prefix: string, pageSize: number): Promise<RateRecord[]> {
  const found: RateRecord[] = []
  let after: string | undefined
  do {
    const page = await driver.extensions?.inspectRates?.({ prefix, pageSize, ...(after !== undefined && { after }) })
    found.push(...(page?.rates ?? []))
    after = page?.next
  } while (after !== undefined)
  return found
}
