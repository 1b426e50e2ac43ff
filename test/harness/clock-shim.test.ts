import { beforeAll, describe, expect, test } from 'vitest'
import { findBinaries } from './binaries.ts'
import { shiftedClock } from './clock-shim.ts'
import { startPostgres, startRedis } from './servers.ts'
import { askPostgres, askRedis } from './wire.ts'
import { startWorker } from './worker.ts'

/** Other test files run at the same time. */
const SLOW = { timeout: 60_000 }

// In a hook, because installing servers on a new machine takes longer than the timeout of a test.
beforeAll(() => findBinaries(['redis-server', 'postgres', 'initdb']), 300_000)

describe.concurrent('clock shim', SLOW, () => {
  const TOLERANCE_MS = 5_000
  const HOUR_MS = 3_600_000

  test('shifts the clock of a running Redis forward and back, and keys expire by it', async () => {
    using clock = await shiftedClock()
    await using redis = await startRedis({ clock })
    const aheadMs = async () => {
      const [seconds, micros] = (await askRedis(redis, 'TIME')) as string[]
      return Number(seconds) * 1_000 + Number(micros) / 1_000 - Date.now()
    }
    expect(Math.abs(await aheadMs())).toBeLessThan(TOLERANCE_MS)
    await askRedis(redis, 'SET', 'short', 'value', 'PX', 60_000)
    await askRedis(redis, 'SET', 'long', 'value', 'PX', 3 * HOUR_MS)

    clock.shift(HOUR_MS)
    expect(Math.abs((await aheadMs()) - HOUR_MS)).toBeLessThan(TOLERANCE_MS)
    expect(await askRedis(redis, 'GET', 'short')).toBeNull()
    expect(await askRedis(redis, 'GET', 'long')).toBe('value')

    clock.shift(-HOUR_MS)
    expect(Math.abs((await aheadMs()) + HOUR_MS)).toBeLessThan(TOLERANCE_MS)
    expect(await askRedis(redis, 'PTTL', 'long')).toBeGreaterThan(3 * HOUR_MS)
    expect(await askRedis(redis, 'EVAL', "return redis.call('TIME')[1]", 0)).toMatch(/^\d+$/)

    clock.shift(0)
    expect(Math.abs(await aheadMs())).toBeLessThan(TOLERANCE_MS)
  })

  test('shifts the clock of a running PostgreSQL forward and back', async () => {
    using clock = await shiftedClock()
    await using postgres = await startPostgres({ clock })
    const aheadMs = async () => {
      const [row] = await askPostgres(postgres, 'SELECT extract(epoch FROM clock_timestamp()) * 1000')
      return Number(row?.[0]) - Date.now()
    }
    for (const offsetMs of [0, HOUR_MS, -HOUR_MS, 0]) {
      clock.shift(offsetMs)
      expect(Math.abs((await aheadMs()) - offsetMs)).toBeLessThan(TOLERANCE_MS)
    }
  })

  test('shifts the clock of a worker process', async () => {
    using clock = await shiftedClock()
    await using worker = await startWorker({ source: 'expose({ now: () => Date.now() })' }, { env: clock.env })
    clock.shift(-HOUR_MS)
    expect(Math.abs(Number(await worker.call('now')) - Date.now() + HOUR_MS)).toBeLessThan(TOLERANCE_MS)
  })
})
