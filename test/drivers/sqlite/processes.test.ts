import assert from 'node:assert/strict'
import { randomInt } from 'node:crypto'
import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { openSqlite } from '../../../src/drivers/sqlite.ts'
import { shiftedClock } from '../../harness/clock-shim.ts'
import { until } from '../../harness/processes.ts'
import { createContext, type SqliteContext } from '../../harness/sqlite-context.ts'
import { startWorker, type Worker, type WorkerOptions } from '../../harness/worker.ts'

/** Real processes on the built package, and real signals, on a machine that is busy with other test files. */
const SLOW = { timeout: 90_000 }
const PATIENCE_MS = 60_000
const BYTES_PER_RECORD = 23

describe('sqlite alone: many processes on one file', SLOW, () => {
  it('failure 32: 8 processes add 8 × 1,000 to a number, 2 are killed and replaced: nothing is lost', async () => {
    await using context = createContext()
    const file = `${context.folder}/numbers`
    const task = { file, times: 1_000, locked: true, timeoutSeconds: 1 }
    const slots = Array.from({ length: 8 }, (_, slot) => slot)
    const workers = new Map<number, Worker>()
    const start = async (slot: number, times: number): Promise<unknown> => {
      const worker = await startLocker(context)
      workers.set(slot, worker)
      return worker.call('increment', { ...task, slot, times })
    }
    const countOf = (slot: number): number => recordsOf(file).filter((record) => record.slot === slot).length
    const seed = randomInt(2 ** 31)
    const victims = [seed % 8, (seed + 1 + (seed % 7)) % 8]
    try {
      const work = slots.map(async (slot) => {
        const done = start(slot, task.times)
        if (!victims.includes(slot)) return done
        const ended = done.then(
          () => assert.fail('it ended before it was killed'),
          (error: Error) => assert.match(error.message, /SIGKILL/),
        )
        // Somewhere in the middle. The size of the file measures the progress at the least cost.
        const killAt = BYTES_PER_RECORD * (800 + ((seed * (slot + 3)) % 4_000))
        await until(() => (statSync(file, { throwIfNoEntry: false })?.size ?? 0) >= killAt, {
          timeoutMs: PATIENCE_MS,
          failure: () => `the processes did not come to ${killAt} bytes`,
        })
        await workers.get(slot)?.kill()
        await ended
        // It may have been killed after it wrote and before it answered, so the file decides.
        return start(slot, task.times - countOf(slot))
      })
      await Promise.all(work)
    } finally {
      for (const worker of workers.values()) await worker.kill()
    }
    const records = recordsOf(file)
    const seeded = `seed ${seed}`
    assert.deepEqual(
      records.map(({ number }) => number),
      Array.from({ length: 8_000 }, (_, index) => index + 1),
      seeded,
    )
    for (const slot of slots) assert.equal(countOf(slot), 1_000, seeded)
    records.reduce((before, record) => {
      assert.ok(record.token > before.token, `${seeded}: ${JSON.stringify([before, record])}`)
      return record
    })
  })

  it('the same without the lock loses some, so that test can fail', async () => {
    await using context = createContext()
    const file = `${context.folder}/numbers`
    const task = { file, times: 500, locked: false, timeoutSeconds: 1 }
    await withLockers(context, 4, (workers) =>
      Promise.all(workers.map((worker, slot) => worker.call('increment', { ...task, slot }))),
    )
    const records = recordsOf(file)
    assert.equal(records.length, 2_000)
    assert.ok((records.at(-1)?.number ?? 0) < 2_000, `${records.at(-1)?.number} of 2000`)
  })

  it('failure 75: 24 processes on one file lose no lease, and no call of theirs fails', async () => {
    await using context = createContext()
    await withLockers(context, 24, async (workers) => {
      const task = { ms: 5_000, timeoutSeconds: 2 }
      const all = (await Promise.all(workers.map((worker) => worker.call('crowd', task)))) as Crowd[]
      const sums = { failed: 0, lost: 0, least: Math.min(...all.map(({ pairs }) => pairs)) > 0 }
      for (const { failed, lost } of all) {
        sums.failed += failed
        sums.lost += lost
      }
      assert.deepEqual(sums, { failed: 0, lost: 0, least: true })
    })
  })

  it('a file that 8 processes create at the same time is created once', async () => {
    await using context = createContext()
    const tokens = await withLockers(context, 8, (workers) =>
      Promise.all(workers.map((worker) => worker.call('holdBriefly', 'name') as Promise<number>)),
    )
    assert.equal(new Set(tokens).size, 8)
  })
})

describe('sqlite alone: waiting across processes', SLOW, () => {
  it('100 waiters in 4 processes cost almost nothing, and are served first come, first served', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const file = `${context.folder}/served`
    writeFileSync(file, '')
    await withLockers(context, 4, async (workers) => {
      const [holder] = workers
      await holder?.call('hold', 'name', { timeoutSeconds: 30 })
      // In turns, so that the order is not the order of the processes.
      for (let round = 0; round < 5; round += 1) {
        for (const worker of workers) await worker.call('queue', { name: 'name', waiters: 5, file })
      }
      await waitersAre(driver, 'name', 100)
      await sleep(500) // until they have done what they do once, when they begin to wait

      const percents = (await Promise.all(workers.map((worker) => worker.call('idleCpuPercent', 3_500)))) as number[]
      // Below 2 on an idle machine. Beside other tests a process pays for caches that others have emptied.
      assert.ok(Math.max(...percents) < 6, `${percents.map((each) => each.toFixed(2))} % of a core`)

      const { waiters } = await driver.inspect({ lockName: 'name' })
      await holder?.call('release', 'name')
      await Promise.all(workers.map((worker) => worker.call('served')))
      const served = readFileSync(file, 'utf8').trimEnd().split('\n')
      assert.deepEqual(
        served.map((line) => line.split(' ')[0]),
        waiters.map(({ claimId }) => claimId),
      )
      const tokens = served.map((line) => Number(line.split(' ')[1]))
      assert.deepEqual(
        tokens,
        tokens.toSorted((a, b) => a - b),
      )
    })
  })

  it('failure 31: when the first waiter is killed, the queue moves on within its TTL', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const waiterTtlSeconds = 1
    await withLockers(
      context,
      3,
      async ([holder, first, second]) => {
        await holder?.call('hold', 'name', { timeoutSeconds: 30 })
        void first?.call('hold', 'name').catch(() => undefined)
        await waitersAre(driver, 'name', 1)
        const got = second?.call('hold', 'name') as Promise<number>
        await waitersAre(driver, 'name', 2)
        await first?.kill()
        const killedMs = performance.now()
        await holder?.call('release', 'name')
        await got
        const tookMs = performance.now() - killedMs
        // The rest is for a busy machine. Without the bound it would be a minute.
        assert.ok(tookMs < waiterTtlSeconds * 1_000 + 5_000, `${tookMs} ms`)
      },
      { waiterTtlSeconds },
    )
  })

  it('where the system does not report file changes, waiters are still woken', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    await withLockers(
      context,
      2,
      async ([a, b]) => {
        for (let round = 0; round < 10; round += 1) {
          const [holder, waiter] = round % 2 === 0 ? [a, b] : [b, a]
          if (round === 0) await holder?.call('hold', 'name', { timeoutSeconds: 60 })
          const got = waiter?.call('hold', 'name', { timeoutSeconds: 60 })
          await waitersAre(driver, 'name', 1)
          await holder?.call('release', 'name')
          await got
        }
        const percent = (await a?.call('idleCpuPercent', 1_000)) as number
        assert.ok(percent < 10, `${percent} % of a core`)
      },
      // A missed wake-up would be made up for only after a third of this.
      { waiterTtlSeconds: 300 },
      { env: { HOLDFAST_TEST_NO_WATCH: '1' } },
    )
  })
})

describe('sqlite alone: processes that are paused, or whose clock is wrong', SLOW, () => {
  it('failure 1: a holder that was paused past its lease knows at once, and its late write is refused', async () => {
    await using context = createContext()
    const file = `${context.folder}/numbers`
    await withLockers(context, 2, async ([holder, rival]) => {
      const stale = await holder?.call('hold', 'name', { timeoutSeconds: 2 })
      assert.equal(await holder?.call('isHeld', 'name'), true)
      await holder?.pause()
      const token = (await rival?.call('hold', 'name', { timeoutSeconds: 30 })) as number
      assert.ok(token > (stale as number))
      await rival?.call('guardedWrite', file, 'name')
      holder?.resume()
      assert.equal(await holder?.call('isHeld', 'name'), false)
      await assert.rejects(holder?.call('guardedWrite', file, 'name') as Promise<unknown>, /refuses/)
      assert.equal(await holder?.call('release', 'name'), false)
      assert.equal(await rival?.call('isHeld', 'name'), true)
    })
  })

  it('failures 4 and 5: tokens rise while the machine’s clock jumps forward and back', async () => {
    await using context = createContext()
    using clock = await shiftedClock()
    await withLockers(
      context,
      2,
      async ([a, b]) => {
        let last = 0
        for (const offsetMs of [0, 3_600_000, -3_600_000, 0]) {
          clock.shift(offsetMs)
          for (const worker of [a, b]) {
            const token = (await worker?.call('holdBriefly', 'name')) as number
            assert.ok(token > last, `${token} after ${last}, with the clock ${offsetMs} ms off`)
            last = token
          }
        }
        await a?.call('hold', 'other', { timeoutSeconds: 30 })
        clock.shift(3_600_000)
        const forced = (await b?.call('hold', 'other', { timeoutSeconds: 30 })) as number
        assert.ok(forced > last)
        assert.equal(await a?.call('isHeld', 'other'), false)
      },
      {},
      { env: clock.env },
    )
  })

  it('failure 74: a clock that goes back and is set right again ends no lease before its time', async () => {
    await using context = createContext()
    using clock = await shiftedClock()
    await withLockers(
      context,
      2,
      async ([holder, rival]) => {
        const refused = () =>
          assert.rejects(
            rival?.call('hold', 'name', { timeoutSeconds: 6, blockingTimeoutSeconds: 0.05 }) as Promise<never>,
          )
        const grantedMs = performance.now()
        await holder?.call('hold', 'name', { timeoutSeconds: 6 })
        for (const offsetMs of [-4_000, -60_000, -5_000]) {
          clock.shift(offsetMs)
          await refused()
          clock.shift(0)
          await refused()
        }
        // Of a lease that had been cut, little would be left now: its holder relies on it for longer.
        await sleep(3_000)
        await refused()
        assert.equal(await holder?.call('isHeld', 'name'), true)
        await rival?.call('hold', 'name', { timeoutSeconds: 6, blockingTimeoutSeconds: 10 })
        const heldMs = performance.now() - grantedMs
        assert.ok(heldMs >= 5_900 && heldMs < 12_000, `${heldMs} ms`)
      },
      {},
      { env: clock.env },
    )
  })

  it('failure 43: what a clock wrote that was ahead ends its own length after it was found', async () => {
    await using context = createContext()
    using clock = await shiftedClock()
    await withLockers(
      context,
      2,
      async ([holder, rival]) => {
        clock.shift(3_600_000)
        await holder?.call('hold', 'name', { timeoutSeconds: 2 })
        await holder?.kill()
        clock.shift(0)
        const foundMs = performance.now()
        await rival?.call('hold', 'name', { timeoutSeconds: 2, blockingTimeoutSeconds: 20 })
        const waitedMs = performance.now() - foundMs
        assert.ok(waitedMs >= 1_900 && waitedMs < 15_000, `${waitedMs} ms`)
      },
      {},
      { env: clock.env },
    )
  })
})

interface Crowd {
  readonly pairs: number
  readonly failed: number
  readonly lost: number
}

interface NumberRecord {
  readonly number: number
  readonly token: number
  readonly slot: number
}

function recordsOf(file: string): NumberRecord[] {
  const lines = readFileSync(file, { encoding: 'utf8', flag: 'a+' }).split('\n').slice(0, -1)
  return lines.map((line) => {
    const [number = 0, token = 0, slot = 0] = line.split(' ').map(Number)
    return { number, token, slot }
  })
}

async function startLocker(context: SqliteContext, options = {}, workerOptions: WorkerOptions = {}): Promise<Worker> {
  const worker = await startWorker({ module: WORKER }, { callTimeoutMs: 85_000, ...workerOptions })
  await worker.call('open', { url: `sqlite:${context.path}`, ...options })
  return worker
}

async function withLockers<T>(
  context: SqliteContext,
  count: number,
  body: (workers: readonly Worker[]) => Promise<T>,
  options: object = {},
  workerOptions: WorkerOptions = {},
): Promise<T> {
  const workers = await Promise.all(Array.from({ length: count }, () => startLocker(context, options, workerOptions)))
  try {
    return await body(workers)
  } finally {
    for (const worker of workers) await worker.kill()
  }
}

const waitersAre = (driver: Driver, lockName: string, count: number): Promise<void> =>
  until(async () => (await driver.inspect({ lockName })).waiters.length === count, {
    timeoutMs: PATIENCE_MS,
    failure: () => `there were never ${count} waiters`,
  })

const WORKER = fileURLToPath(new URL('../../harness/sqlite-worker.mjs', import.meta.url))
