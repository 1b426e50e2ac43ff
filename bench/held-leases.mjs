// The cost of holding many leases: timers, calls of the driver, memory.
// Run `node --expose-gc bench/held-leases.mjs [leases] [ttlSeconds]`.
import { setTimeout as sleep } from 'node:timers/promises'
import { memoryDriver } from '../dist/drivers/memory.js'
import { DistributedLock } from '../dist/index.js'

const count = Number(process.argv[2] ?? 10_000)
const ttlSeconds = Number(process.argv[3] ?? 3)

let timers = 0
const clock = {
  now: () => {
    const [seconds, nanoseconds] = process.hrtime()
    return { monotonicMs: seconds * 1_000 + nanoseconds / 1_000_000, wallMs: Date.now() }
  },
  setTimer(run, ms, keepsAlive) {
    timers += 1
    let live = true
    const end = () => {
      if (live) timers -= 1
      live = false
    }
    const timer = setTimeout(() => {
      end()
      run()
    }, ms)
    if (!keepsAlive) timer.unref()
    return {
      cancel() {
        clearTimeout(timer)
        end()
      },
    }
  },
}

const inner = memoryDriver()
const calls = { acquire: 0, renew: 0, renewed: 0 }
const driver = {
  ...inner,
  acquire(claims) {
    calls.acquire += 1
    return inner.acquire(claims)
  },
  renew(renewals) {
    calls.renew += 1
    calls.renewed += renewals.length
    return inner.renew(renewals)
  },
}

const lock = new DistributedLock({ driver, clock })
// A first round before the measurement, so that compiled code and first allocations are not counted as leases.
await Promise.all(Array.from({ length: count }, (_, i) => lock.hold(`warm:${i}`, { timeoutSeconds: ttlSeconds })))
await lock.releaseAll()
await sleep(100)
globalThis.gc?.()
const before = process.memoryUsage().heapUsed
const storeOnly = memoryDriver()
await storeOnly.acquire(
  Array.from({ length: count }, (_, i) => ({
    lockName: `bench:${i}`,
    claimId: `claim.${i}`,
    holderId: lock.holderId,
    mode: 'exclusive',
    permits: 1,
    ttlMs: 60_000,
    waitMs: 0,
  })),
)
globalThis.gc?.()
const store = process.memoryUsage().heapUsed - before

const began = performance.now()
const leases = await Promise.all(
  Array.from({ length: count }, (_, i) => lock.hold(`lease:${i}`, { timeoutSeconds: ttlSeconds })),
)
const took = performance.now() - began
globalThis.gc?.()
const total = process.memoryUsage().heapUsed - before - store
calls.renew = 0
calls.renewed = 0
const cpu = process.cpuUsage()
const watchedMs = ttlSeconds * 3_000
await sleep(watchedMs)
const { user, system } = process.cpuUsage(cpu)
const intervals = watchedMs / ((ttlSeconds * 1_000) / 3)
console.log(
  JSON.stringify(
    {
      leases: count,
      ttlSeconds,
      stillHeld: leases.filter((lease) => lease.held).length,
      acquireAllMs: Math.round(took),
      timersAlive: timers,
      renewCallsPerInterval: calls.renew / intervals,
      renewalsPerInterval: calls.renewed / intervals,
      bytesPerLeaseWithoutStore: Math.round((total - store) / count),
      bytesPerLeaseInMemoryStore: Math.round(store / count),
      cpuPercent: Number((((user + system) / 1_000 / watchedMs) * 100).toFixed(2)),
    },
    null,
    2,
  ),
)
await lock.close()
