// @ts-check
// One process of the scene that the screenshots show. Its functions are called from scene.ts.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock, LeaderElection, RateLimiter, ReadWriteLock, Semaphore } from 'holdfast'

const [url = '', holderId = ''] = [process.env['SCENE_URL'], process.env['SCENE_HOLDER']]
const lock = new DistributedLock({ url, holderId, deadlockAfterSeconds: false })
const semaphores = new Map([5, 12].map((limit) => [limit, new Semaphore({ url, holderId, limit })]))
const documents = new ReadWriteLock({ url, holderId })

/** A failure is part of the scene: a lost lease, a wait that ended. */
const quietly = () => undefined
/** @param {number} least @param {number} most */
const between = (least, most) => least + Math.random() * (most - least)

/** Orders that are processed one after the other, several at a time. @param {number} tasks */
export async function orders(tasks) {
  for (let task = 0; task < tasks; task += 1) {
    void (async () => {
      for (;;) {
        const number = Math.floor(between(10_420, 10_480))
        const metadata = { customer: `c-${number % 37}`, step: ['reserve', 'charge', 'ship'][number % 3] }
        const options = { timeoutSeconds: 12, blockingTimeoutSeconds: 20, metadata }
        await lock.withLock(`order:${number}`, () => sleep(between(4_000, 20_000)), options).catch(quietly)
        await sleep(between(100, 900))
      }
    })()
  }
}

/** A report that all processes want in turn. @param {number} ttl @param {number} holdSeconds */
export async function report(ttl, holdSeconds) {
  void (async () => {
    for (;;) {
      const metadata = { job: 'daily-report', host: holderId, attempt: 1 }
      const options = { timeoutSeconds: ttl, blockingTimeoutSeconds: 120, metadata }
      const work = () => sleep(holdSeconds * between(600, 1_400))
      await lock.withLock('report:daily', work, options).catch(quietly)
    }
  })()
}

/** @param {string} name @param {string} value */
export async function lead(name, value) {
  const election = new LeaderElection({ url, holderId, name, timeoutSeconds: 9 })
  void election.run((term) => sleep(3_600_000, undefined, { signal: term.signal }).catch(quietly), { value })
}

/** @param {string} name @param {number} limit @param {number} tasks */
export async function permits(name, limit, tasks) {
  const semaphore = semaphores.get(limit)
  for (let task = 0; task < tasks; task += 1) {
    void (async () => {
      for (;;) {
        const options = { blockingTimeoutSeconds: 60, timeoutSeconds: 15 }
        await semaphore?.withPermits(name, () => sleep(between(3_000, 9_000)), options).catch(quietly)
        await sleep(between(0, 400))
      }
    })()
  }
}

/** @param {string} name @param {boolean} writes */
export async function share(name, writes) {
  void (async () => {
    for (;;) {
      const options = { blockingTimeoutSeconds: 60, timeoutSeconds: 10 }
      const work = () => sleep(between(5_000, 12_000))
      await (writes ? documents.withWrite(name, work, options) : documents.withRead(name, work, options)).catch(quietly)
      await sleep(between(100, 2_000))
    }
  })()
}

/** @param {readonly string[]} keys */
export async function limit(keys) {
  const limiters = [
    new RateLimiter({ url, limits: { limit: 100, periodSeconds: 60 } }),
    new RateLimiter({ url, limits: { limit: 10, periodSeconds: 10, burst: 10 } }),
  ]
  for (const [at, key] of keys.entries()) {
    void (async () => {
      for (;;) {
        await limiters[at % 2]?.consume(key).catch(quietly)
        await sleep(between(200, 900) * (1 + at / 3))
      }
    })()
  }
}

/** Holds one lock and then waits for the other. @param {string} first @param {string} second */
export async function nest(first, second) {
  const options = { timeoutSeconds: 30, blockingTimeoutSeconds: 3_600 }
  void lock
    .withLock(
      first,
      async () => {
        await sleep(1_500)
        await lock.withLock(second, () => sleep(1_000), options)
      },
      options,
    )
    .catch(quietly)
}

/** @param {string} name @param {number} seconds */
export async function hold(name, seconds) {
  void lock
    .withLock(name, () => sleep(seconds * 1_000), { timeoutSeconds: 30, blockingTimeoutSeconds: 600 })
    .catch(quietly)
}
