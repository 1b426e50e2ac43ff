// @ts-check
// The functions of a worker (see worker.ts) of test/primitives/lock/sharing-processes.test.ts, on the built package.
import { setTimeout as sleep } from 'node:timers/promises'
import { DistributedLock, ReadWriteLock, Semaphore } from 'holdfast'

/** Milliseconds on the machine's monotonic clock, which all its processes share. */
const nowMs = () => Number(process.hrtime.bigint()) / 1e6

/** @param {number} below */
const random = (below) => Math.floor(Math.random() * below)

/**
 * For `seconds`, reads and writes, takes permits and takes several locks, all at the same time. Returns every turn with
 * its times: when it was asked for, from when on it was in the queue, when it began and when it ended. The time from
 * begin to end lies within the time of its lease.
 *
 * @param {{ url: string, scope: string, seconds: number, limit: number | null }} task no limit for a driver without any
 */
export async function share({ url, scope, seconds, limit }) {
  const options = { url, waiterTtlSeconds: 30 }
  const locks = new ReadWriteLock(options)
  const permits = new Semaphore({ ...options, limit: limit ?? 1 })
  const several = new DistributedLock(options)
  const endMs = nowMs() + seconds * 1_000
  /** @type {import('./sharing-history.ts').Turn[]} */
  const turns = []

  /**
   * @param {Pick<import('./sharing-history.ts').Turn, 'kind' | 'names' | 'permits'>} what
   * @param {(run: () => Promise<void>) => Promise<unknown>} take
   * @param {{ on: ReadWriteLock['on'] }} instance
   */
  async function turn(what, take, instance) {
    /** @type {import('./sharing-history.ts').Turn} */
    const told = { ...what, askedMs: nowMs(), queuedMs: null, beganMs: 0, endedMs: 0 }
    // An instance has one claim in flight at a time.
    const stop = instance.on('waiting', () => {
      told.queuedMs ??= nowMs()
    })
    await take(async () => {
      told.beganMs = nowMs()
      stop()
      if (random(2) === 0) await sleep(random(4))
      told.endedMs = nowMs()
    })
    turns.push(told)
    if (random(3) === 0) await sleep(random(6))
  }

  const long = { timeoutSeconds: 60, blockingTimeoutSeconds: 120 }
  const [page, pool] = [`${scope}:page`, `${scope}:pool`]
  await Promise.all([
    (async () => {
      while (nowMs() < endMs) {
        const writes = random(4) === 0
        const kind = writes ? 'write' : 'read'
        await turn(
          { kind, names: [page], permits: 1 },
          (run) => (writes ? locks.withWrite(page, run, long) : locks.withRead(page, run, long)),
          locks,
        )
      }
    })(),
    (async () => {
      while (limit !== null && nowMs() < endMs) {
        const count = 1 + random(2)
        const run = turn.bind(undefined, { kind: 'permits', names: [pool], permits: count })
        await run((inside) => permits.withPermits(pool, inside, { ...long, permits: count }), permits)
      }
    })(),
    (async () => {
      while (nowMs() < endMs) {
        const names = [0, 1, 2, 3].map((each) => `${scope}:${each}`).sort(() => random(3) - 1)
        const wanted = names.slice(random(2), 3)
        await turn(
          { kind: 'several', names: wanted, permits: 1 },
          (run) => several.withLocks(wanted, run, long),
          several,
        )
      }
    })(),
  ])
  await Promise.all([locks.close(), permits.close(), several.close()])
  return turns
}
