// @ts-check
import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { openIoredis, openNodeRedis, openPool } from '../support/clients.mjs'
import { MANY } from '../support/names.mjs'

/** @import { Contestant, OpenOptions } from '../types.d.ts' */
/** @import { Claim, Driver } from '../../src/core/driver.ts' */

const AT_ONCE = { blocking: false, timeoutSeconds: 30 }
const WAITS = { timeoutSeconds: 30, blockingTimeoutSeconds: 600 }
const HOUR_MS = 3_600_000
const LIMITS = { limit: MANY, periodSeconds: 60 }
const SHARE = { units: 100, keepSeconds: 1 }

/**
 * @param {OpenOptions} options
 * @returns {Promise<Contestant>}
 */
export async function open(options) {
  /** @type {typeof import('../../src/index.ts')} */
  const { DistributedLock, RateLimiter } = await load(options.dist, 'index.js')
  const { driver, close } = await openDriver(options)
  const telemetry = await openTelemetry(options)
  const lock = new DistributedLock({ driver })
  const limiter = driver.capabilities.rate
    ? new RateLimiter({ driver, limits: LIMITS, ...(options.variant === 'local share' && { localShare: SHARE }) })
    : undefined
  return {
    async pair(name) {
      const result = await lock.acquire(name, AT_ONCE)
      if (!result.acquired) throw new Error(result.error)
      await result.lock.release()
    },
    async hold(name) {
      const lease = await lock.hold(name, WAITS)
      return () => lease.release()
    },
    async keep(name, ttlMs, onLost) {
      const lease = await lock.hold(name, { timeoutSeconds: ttlMs / 1_000 })
      lease.signal.addEventListener('abort', onLost)
      return () => lease.release()
    },
    ...(limiter && { consume: (key) => limiter.consume(key) }),
    fill: (names) => driver.acquire(names.map(claimOf), { secret: '' }),
    async close() {
      await lock.close()
      await limiter?.close()
      telemetry?.close()
      await driver.close()
      await close()
    },
  }
}

/**
 * @param {OpenOptions} options
 * @returns {Promise<{ driver: Driver, close(): unknown }>}
 */
async function openDriver({ driver, stores, dist, variant }) {
  const onWarning = () => {}
  if (driver === 'redis' || driver === 'node-redis') {
    /** @type {typeof import('../../src/drivers/redis.ts')} */
    const { redisDriver } = await load(dist, 'drivers/redis.js')
    if (driver === 'redis') {
      const client = openIoredis(stores.redis)
      return { driver: redisDriver({ client, onWarning }), close: () => client.disconnect() }
    }
    const client = await openNodeRedis(stores.redis)
    return { driver: redisDriver({ client, onWarning }), close: () => client.destroy() }
  }
  if (driver === 'redlock') {
    /** @type {typeof import('../../src/drivers/redlock.ts')} */
    const { redlockDriver } = await load(dist, 'drivers/redlock.js')
    const clients = stores.redlock.map((url) => openIoredis(url))
    const close = () => clients.map((client) => client.disconnect())
    return { driver: redlockDriver({ clients, persistent: true }), close }
  }
  if (driver === 'postgres' || driver === 'advisory') {
    const pool = openPool(stores.postgres)
    const close = () => pool.end()
    if (driver === 'postgres') {
      /** @type {typeof import('../../src/drivers/postgres.ts')} */
      const { postgresDriver } = await load(dist, 'drivers/postgres.js')
      const durability = variant === 'relaxed' ? 'relaxed' : 'crash-safe'
      return { driver: postgresDriver({ client: pool, durability, schema: `holdfast_${placeOf(dist)}` }), close }
    }
    /** @type {typeof import('../../src/drivers/postgres-advisory.ts')} */
    const { postgresAdvisoryDriver } = await load(dist, 'drivers/postgres-advisory.js')
    return { driver: postgresAdvisoryDriver({ client: pool }), close }
  }
  if (driver === 'sqlite') {
    /** @type {typeof import('../../src/index.ts')} */
    const { connect } = await load(dist, 'index.js')
    return { driver: await connect(`sqlite:${join(stores.folder, `locks-${placeOf(dist)}.db`)}`), close() {} }
  }
  /** @type {typeof import('../../src/drivers/memory.ts')} */
  const { memoryDriver } = await load(dist, 'drivers/memory.js')
  return { driver: memoryDriver(), close() {} }
}

/**
 * What listens to the events. OpenTelemetry has its real SDK, with metrics and with spans that are dropped when they
 * end.
 *
 * @param {OpenOptions} options
 * @returns {Promise<{ close(): void } | undefined>}
 */
async function openTelemetry({ dist, variant }) {
  const templates = ['order:{id}', 'cron:{job}', 'user:{id}:profile']
  if (variant === 'prometheus') {
    /** @type {typeof import('../../src/telemetry/prometheus.ts')} */
    const { prometheusMetrics } = await load(dist, 'telemetry/prometheus.js')
    return prometheusMetrics({ templates })
  }
  if (variant !== 'opentelemetry') return undefined
  const api = await import('@opentelemetry/api')
  const { MeterProvider } = await import('@opentelemetry/sdk-metrics')
  const { BasicTracerProvider } = await import('@opentelemetry/sdk-trace-base')
  const { AsyncLocalStorageContextManager } = await import('@opentelemetry/context-async-hooks')
  api.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
  api.trace.setGlobalTracerProvider(new BasicTracerProvider())
  api.metrics.setGlobalMeterProvider(new MeterProvider())
  /** @type {typeof import('../../src/telemetry/opentelemetry.ts')} */
  const { openTelemetry: open } = await load(dist, 'telemetry/opentelemetry.js')
  return open({ api, templates })
}

/**
 * @param {string} dist
 * @param {string} file
 */
const load = (dist, file) => import(pathToFileURL(join(dist, file)).href)

/**
 * Two builds may have different tables, so each has its own place in a store.
 *
 * @param {string} dist
 */
const placeOf = (dist) => createHash('sha256').update(dist).digest('hex').slice(0, 8)

/**
 * @param {string} lockName
 * @returns {Claim}
 */
const claimOf = (lockName) => ({
  lockName,
  claimId: `fill.${lockName}`,
  holderId: 'fill',
  mode: 'exclusive',
  permits: 1,
  ttlMs: HOUR_MS,
  waiterTtlMs: 0,
})
