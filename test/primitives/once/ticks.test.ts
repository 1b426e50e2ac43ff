import { setTimeout as sleep } from 'node:timers/promises'
import { Cron } from 'croner'
import cron, { type TaskContext } from 'node-cron'
import { afterEach, describe, expect, it } from 'vitest'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { type InstanceOptions, OnceOnly, runCoordinator, StoreError, type TickOptions } from '../../../src/index.ts'
import { faultyNetwork } from '../../../src/testing/conformance/faulty-network.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'
import { gate } from '../../harness/gate.ts'

const opened: { close(): Promise<void> }[] = []

function jobsOn(options: InstanceOptions = {}): OnceOnly {
  const jobs = new OnceOnly({ driver: memoryDriver(), ...options })
  opened.push(jobs)
  return jobs
}

/** Two instances on one store, each with its own driver, as in two processes. */
function twoInstances(): [OnceOnly, OnceOnly] {
  const store = createMemoryStore()
  return [jobsOn({ driver: memoryDriver({ store }) }), jobsOn({ driver: memoryDriver({ store }) })]
}

afterEach(async () => {
  for (const each of opened.splice(0)) await each.close()
})

const NOON = new Date('2026-03-01T12:00:00.000Z')
const at = (seconds: number): Date => new Date(NOON.getTime() + seconds * 1_000)
const skipped = (reason: string) => ({ ran: false, reason })

describe('the scheduler’s tick', () => {
  /** The indexes of the calls that ran the job. Each call has its own instance. */
  async function runsOf(calls: readonly (readonly [context: unknown, wallMs: number])[], options = {}) {
    const driver = memoryDriver()
    const ran: number[] = []
    for (const [index, [context, wallMs]] of calls.entries()) {
      const clock = new VirtualTime().clock({ wallOffsetMs: wallMs })
      const jobs = new OnceOnly({ driver, clock })
      opened.push(jobs)
      await jobs.everyTick('report', () => void ran.push(index), options)(context)
    }
    return ran
  }

  it('BullMQ: the id of the job is the tick, also on a retry', async () => {
    const job = (id: string) => ({ id, name: 'report', data: {}, timestamp: 1_772_366_400_000, opts: { repeat: {} } })
    const first = job('repeat:daily:1772366400000')
    expect(
      await runsOf([
        [first, 0],
        [{ ...first, attemptsMade: 2 }, 5_000],
        [job('repeat:daily:1772452800000'), 0],
      ]),
    ).toEqual([0, 2])
  })

  it('node-cron: the scheduled time is the tick, even if it fires late', async () => {
    const context = (date: Date, lateMs: number) => ({
      date,
      dateLocalIso: '',
      triggeredAt: new Date(date.getTime() + lateMs),
    })
    const later = new Date(NOON.getTime() + 60_000)
    expect(
      await runsOf([
        [context(NOON, 2), 0],
        [context(NOON, 40_000), 0],
        [context(later, 1), 0],
      ]),
    ).toEqual([0, 2])
  })

  it('croner: the last scheduled time before the start of the run is the tick', async () => {
    const job = (currentRun: Date, pattern: string) => {
      const schedule = new Cron(pattern, { paused: true, timezone: 'UTC' })
      return { currentRun: () => currentRun, nextRun: (after: Date) => schedule.nextRun(after) }
    }
    for (const [pattern, periodMs] of [
      ['*/10 * * * * *', 10_000],
      ['0 0 * * * *', 3_600_000],
      ['0 12 1 * *', 31 * 86_400_000],
    ] as const) {
      const calls = [0, 3, 1_700, 4_000, periodMs, periodMs + 2].map((ms) => [job(at(ms / 1_000), pattern), 0] as const)
      expect(await runsOf(calls), pattern).toEqual([0, 4])
    }
  })

  it('a Date is a tick', async () => {
    expect(
      await runsOf([
        [NOON, 0],
        [new Date(NOON), 9],
        [new Date(NOON.getTime() + 1), 0],
      ]),
    ).toEqual([0, 2])
  })

  it('without a tick, the current time is rounded to the period: a late clock does not run the job again', async () => {
    const clock = (ms: number) => [undefined, NOON.getTime() + ms] as const
    // Slightly early, in time, slightly late, very late; then the next tick.
    const ticks = [clock(-2), clock(0), clock(3), clock(20_000), clock(59_000), clock(60_000)]
    expect(await runsOf(ticks, { everySeconds: 60 })).toEqual([0, 5])
    // Minute 30 of every hour works like minute 0.
    const half = [clock(1_799_998), clock(1_800_000), clock(1_810_000), clock(5_400_000)]
    expect(await runsOf(half, { everySeconds: 3_600 })).toEqual([0, 3])
    expect(await runsOf([clock(0), clock(60), clock(240), clock(260)], { everySeconds: 0.25 })).toEqual([0, 2])
  })

  it('passes on the result, which need not be JSON, and the scheduler’s context', async () => {
    const jobs = jobsOn()
    const tick = jobs.everyTick('name', ({ fencingToken }, date: Date | undefined) => [fencingToken > 0, date])
    expect(await tick(NOON)).toEqual({ ran: true, result: [true, NOON] })
    expect(await tick(NOON)).toEqual({ ran: false, reason: 'elsewhere' })
  })

  it('works with the real croner and node-cron: two instances run each tick once', async () => {
    const instances = twoInstances()
    const ticks: Record<string, string[]> = { croner: [], 'node-cron': [] }
    const stop: (() => unknown)[] = []
    const calls: Promise<unknown>[] = []
    const awaited =
      <Context>(tick: (context: Context) => Promise<unknown>) =>
      async (context: Context): Promise<void> => {
        const call = tick(context)
        calls.push(call)
        await call
      }
    for (const jobs of instances) {
      const croner = jobs.everyTick('croner', (_, job: Cron | undefined) => {
        ticks['croner']?.push(String(job?.currentRun()?.getUTCSeconds()))
      })
      const job = new Cron('* * * * * *', awaited(croner))
      const nodeCron = jobs.everyTick('node-cron', (_, context: TaskContext | undefined) => {
        ticks['node-cron']?.push(String(context?.date.getUTCSeconds()))
      })
      const task = cron.schedule('* * * * * *', awaited(nodeCron), { suppressMissedWarning: true })
      stop.push(
        () => job.stop(),
        () => task.destroy(),
      )
    }
    while (Object.values(ticks).some((each) => each.length < 2)) await sleep(50) // until both have fired twice
    for (const each of stop) await each()
    await Promise.all(calls)
    for (const [name, each] of Object.entries(ticks)) expect(new Set(each).size, `${name}: ${each}`).toBe(each.length)
  })
})

describe('runCoordinator', () => {
  it('node-cron runs a distributed task on one instance per tick, and logs nothing for the others', async () => {
    const logged: unknown[] = []
    const log = (...args: unknown[]) => void logged.push(args)
    const logger = { info: log, warn: log, error: log, debug: () => undefined }
    const [ran, skips]: [string[], string[]] = [[], []]
    const tasks = twoInstances().map((jobs) => {
      const options = { name: 'report', distributed: true, runCoordinator: runCoordinator(jobs), logger }
      const run = (context: TaskContext) => void ran.push(context.date.toISOString())
      const task = cron.schedule('* * * * * *', run, { ...options, suppressMissedWarning: true })
      task.on('execution:skipped', ({ reason }) => void skips.push(String(reason)))
      return task
    })
    while (ran.length < 2 || skips.length < 2) await sleep(20) // until the schedule has fired twice
    for (const task of tasks) await task.destroy()
    expect(new Set(ran).size).toBe(ran.length)
    expect(new Set(skips)).toEqual(new Set(['not-elected']))
    expect(logged).toEqual([])
  })

  it('a task that runs keeps the lock until it has completed; closing ends a wait with false', async () => {
    const [a, b] = twoInstances().map((jobs) => ({ jobs, coordinator: runCoordinator(jobs) }))
    const key = (seconds: number) => `a:task:${at(seconds).toISOString()}`
    if (a === undefined || b === undefined) throw new Error('two instances')
    expect(await a.coordinator.shouldRun(key(0))).toBe(true)
    expect(await b.coordinator.shouldRun(key(60))).toBe(false)
    const waits = gate()
    b.jobs.on('waiting', () => waits.open())
    const waiting = b.coordinator.shouldRun(key(0))
    await waits.opened
    await b.jobs.close()
    expect(await waiting).toBe(false)
    await a.coordinator.onComplete(key(0))
    expect(await a.coordinator.shouldRun(key(0))).toBe(false)
    expect(await a.coordinator.shouldRun(key(60))).toBe(true)
    await a.coordinator.onComplete(key(60))
    await expect(a.coordinator.shouldRun('task')).rejects.toMatchObject({ argument: 'key' })
    expect(() => runCoordinator(a.jobs, { missed: 'none' as never })).toThrow('missed must be')
  })
})

describe('a tick that does not run resolves with the reason', () => {
  it('elsewhere: another instance runs it, or has run it; one that waits takes over if the job fails', async () => {
    const [a, b] = twoInstances()
    const [begun, go] = [gate(), gate()]
    const failing = a.everyTick('report', async () => {
      begun.open()
      await go.opened
      throw new Error('no paper')
    })
    const rejected = expect(failing(NOON)).rejects.toThrow('no paper')
    await begun.opened
    expect(await b.everyTick('report', () => 1, { blockingTimeoutSeconds: 0 })(NOON)).toEqual(skipped('elsewhere'))
    const waits = gate()
    b.on('waiting', () => waits.open())
    const waiting = b.everyTick('report', () => 'b')(NOON)
    await waits.opened
    go.open()
    await rejected
    expect(await waiting).toEqual({ ran: true, result: 'b' })
    expect(await a.everyTick('report', () => 'again')(NOON)).toEqual(skipped('elsewhere'))
  })

  it('overlap: the job of another tick runs; with `overlap: true`, a tick runs beside it', async () => {
    const [a, b] = twoInstances()
    const [begun, go] = [gate(), gate()]
    const hour = { everySeconds: 3_600 }
    const run = async () => {
      begun.open()
      await go.opened
    }
    const first = a.everyTick('report', run)(NOON)
    await begun.opened
    expect(await a.everyTick('report', () => 1)(at(60))).toEqual(skipped('overlap'))
    expect(await b.everyTick('report', () => 1)(at(60))).toEqual(skipped('overlap'))
    expect(await b.everyTick('report', () => 1, { overlap: true })(at(60))).toEqual({ ran: true, result: 1 })
    go.open()
    expect(await first).toEqual({ ran: true, result: undefined })
    // In its own job, a tick is one that comes too early.
    const nested = a.everyTick('nested', () => a.everyTick('nested', () => 1, hour)(at(60)), hour)
    expect(await nested(NOON)).toEqual({ ran: true, result: skipped('overlap') })
  })

  it('closed, aborted: a tick that waits ends with its instance or its signal, and later ones do not run', async () => {
    const [a, b] = twoInstances()
    const [begun, go, waits] = [gate(), gate(), gate()]
    const run = a.everyTick('report', async () => {
      begun.open()
      await go.opened
    })(NOON)
    await begun.opened
    const abort = new AbortController()
    let waiting = 0
    b.on('waiting', () => ++waiting === 2 && waits.open())
    const tick = b.everyTick('report', () => 1)
    const ends = [tick(NOON), b.everyTick('report', () => 1, { signal: abort.signal })(NOON)]
    await waits.opened
    abort.abort()
    await ends[1]
    await b.close()
    expect(await Promise.all(ends)).toEqual([skipped('closed'), skipped('aborted')])
    expect(await tick(at(60))).toEqual(skipped('closed'))
    const draining = a.close({ drainSeconds: 30 })
    expect(await a.everyTick('another', () => 1)(NOON)).toEqual(skipped('closed'))
    go.open()
    expect(await run).toEqual({ ran: true, result: undefined })
    await draining
  })
})

describe('after an outage', () => {
  /** Two processes with one schedule, every ten seconds. The store is away for seven ticks, and each job takes 4 s. */
  async function outage(options: TickOptions, how: 'hangs' | 'refuses' = 'hangs') {
    const time = new VirtualTime()
    const clock = time.clock()
    const store = createMemoryStore(clock)
    const networks = [1, 2].map(() => faultyNetwork(memoryDriver({ store })))
    const ran: number[] = []
    let [running, most] = [0, 0]
    const ends: unknown[] = []
    const work = async (_: unknown, tick: Date | undefined): Promise<void> => {
      ran.push(((tick as Date).getTime() - NOON.getTime()) / 10_000)
      running += 1
      most = Math.max(most, running)
      await new Promise<void>((resolve) => void time.in(4_000, resolve))
      running -= 1
    }
    const instances = networks.map(({ driver }, index) => {
      return new OnceOnly({ driver, clock, random: seededRandom(index + 1), callTimeoutSeconds: 3 })
    })
    const ticks = instances.map((jobs) => jobs.everyTick('report', work, options))
    for (let number = 0; number < 10; number += 1) {
      for (const network of networks) {
        if (number === 1 && how === 'hangs') network.cut()
        if (number === 1 && how === 'refuses') {
          for (const method of ['acquire', 'inspect', 'release', 'renew'] as const) {
            network.always(method, () => Promise.reject(new StoreError('connection refused', { retryable: true })))
          }
        }
      }
      for (const tick of ticks) {
        void tick(at(number * 10)).then(
          (end) => ends.push(end.ran ? 'ran' : end.reason),
          (error: Error) => ends.push(error),
        )
      }
      await time.run(number === 7 ? 5_000 : 10_000)
      if (number !== 7) continue
      for (const network of networks) network.heal()
      await time.run(5_000)
    }
    await time.run(100_000)
    const closing = Promise.all(instances.map((jobs) => jobs.close()))
    await time.run(10_000)
    await closing
    return { ran, most, ends }
  }

  it.each(['hangs', 'refuses'] as const)(
    'failure 85: after an outage (the store %s) at most one late run by default, never two at a time',
    async (how) => {
      const { ran, most, ends } = await outage({}, how)
      expect(ran).toEqual([0, 7, 8, 9])
      expect(most).toBe(1)
      expect(ends.filter((end) => end === 'missed')).toHaveLength(12)
      expect(ends.filter((end) => end === 'ran')).toHaveLength(4)
    },
  )

  it('missed: all runs every tick late, in order, one at a time; those that come meanwhile are skipped', async () => {
    const { ran, most } = await outage({ missed: 'all' })
    expect(ran.slice(0, 8)).toEqual([0, 1, 2, 3, 4, 5, 6, 7])
    expect(new Set(ran).size).toBe(ran.length)
    expect(most).toBe(1)
  })

  it('missed: skip rejects in the outage, and runs nothing late', async () => {
    const { ran, most, ends } = await outage({ missed: 'skip' })
    expect(ran).toEqual([0, 8, 9])
    expect(most).toBe(1)
    expect(ends.filter((end) => end instanceof StoreError)).toHaveLength(14)
  })

  it('blockingTimeoutSeconds bounds the wait for a store that is away', async () => {
    const { ran, ends } = await outage({ blockingTimeoutSeconds: 5 })
    expect(ran).toEqual([0, 8, 9])
    expect(ends.filter((end) => end instanceof StoreError)).toHaveLength(14)
  })

  it('a tick whose process dies is taken over by one that waits, unless a later tick has come', async () => {
    const time = new VirtualTime()
    const clock = time.clock()
    const store = createMemoryStore(clock)
    const network = faultyNetwork(memoryDriver({ store }))
    const random = seededRandom(3)
    const dying = new OnceOnly({ driver: network.driver, clock, random })
    const other = new OnceOnly({ driver: memoryDriver({ store }), clock, random })
    const never = dying.everyTick('report', () => new Promise<void>(() => {}))
    const tick = other.everyTick('report', () => 'taken over')
    for (const isLater of [false, true]) {
      const start = isLater ? 600 : 0
      void never(at(start)).catch(() => undefined)
      await time.run(10)
      network.cut()
      const waiting = tick(at(start))
      await time.run(10)
      const later = isLater ? tick(at(start + 60)) : undefined
      await time.run(40_000)
      expect(await waiting).toEqual(isLater ? skipped('missed') : { ran: true, result: 'taken over' })
      if (isLater) expect(await later).toEqual(skipped('overlap'))
      network.heal()
      await time.run(10_000)
    }
    const closing = Promise.all([dying.close({ deadlineSeconds: 1 }), other.close()])
    await time.run(20_000)
    await closing
  })
})
