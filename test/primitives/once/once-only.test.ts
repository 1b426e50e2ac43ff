import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, describe, expect, inject, it } from 'vitest'
import { isStorable } from '../../../src/core/arguments.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { openPostgresAdvisory } from '../../../src/drivers/postgres-advisory.ts'
import {
  AbortedError,
  ClosedError,
  DeadlockError,
  DistributedLock,
  type InstanceOptions,
  LeaseLostError,
  NotAcquiredError,
  OnceOnly,
  ResultNotKeptError,
  UnsupportedError,
} from '../../../src/index.ts'
import { faultyNetwork } from '../../../src/testing/conformance/faulty-network.ts'
import { gate } from '../../harness/gate.ts'
import { unreadableValues } from '../../harness/unreadable.ts'

const opened: { close(): Promise<void> }[] = []
const HOUR = { forSeconds: 3_600 }

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

/** Resolves with a count that has stopped rising: all calls are waiting. */
async function settled(count: () => number): Promise<number> {
  for (let last = -1, alike = 0; alike < 5; alike = last === count() ? alike + 1 : 0) {
    last = count()
    await sleep(10)
  }
  return count()
}

afterEach(async () => {
  for (const each of opened.splice(0)) await each.close()
})

const { 'an object without a prototype': _, ...notJson } = unreadableValues()

describe('once', () => {
  it('runs once per key, and later callers get the same result', async () => {
    const [a, b] = twoInstances()
    let runs = 0
    const work = async () => ({ invoice: 7, run: ++runs })
    expect(await a.once('invoice:7', work, HOUR)).toEqual({ invoice: 7, run: 1 })
    expect(await b.once('invoice:7', work, HOUR)).toEqual({ invoice: 7, run: 1 })
    expect(await b.once('invoice:8', work, HOUR)).toEqual({ invoice: 7, run: 2 })
  })

  it('calls during the run wait for it, and get its result', async () => {
    const [a, b] = twoInstances()
    const [begun, go] = [gate(), gate()]
    const first = a.once(
      'key',
      async () => {
        begun.open()
        await go.opened
        return 'from a'
      },
      HOUR,
    )
    await begun.opened
    const others = [a, b, b].map((jobs) => jobs.once('key', () => 'not this', HOUR))
    await expect(b.once('key', () => 'not this', { ...HOUR, blockingTimeoutSeconds: 0 })).rejects.toThrow(
      NotAcquiredError,
    )
    go.open()
    expect(await Promise.all([first, ...others])).toEqual(Array(4).fill('from a'))
  })

  it('a kept result reaches all waiting calls of the instance at once, each with its own copy', async () => {
    const driver = memoryDriver()
    let asked = 0
    const counting = {
      ...driver,
      acquire(...[claims, call]: Parameters<typeof driver.acquire>) {
        asked += 1
        return driver.acquire(claims, call)
      },
      inspect(query: Parameters<typeof driver.inspect>[0]) {
        asked += 1
        return driver.inspect(query)
      },
    }
    const jobs = jobsOn({ driver: counting })
    const [begun, go] = [gate(), gate()]
    const run = jobs.once('key', () => go.opened.then(() => ({ paid: 1 })), HOUR)
    jobs.on('waiting', () => begun.open())
    const waiting = Array.from({ length: 1_000 }, () => jobs.once('key', () => ({ paid: 2 }), HOUR))
    await begun.opened
    const askedBefore = await settled(() => asked)
    go.open()
    const results = await Promise.all([run, ...waiting])
    expect(new Set(results).size).toBe(1_001)
    for (const result of results) expect(result).toEqual({ paid: 1 })
    // The result itself, and the requests that they send together when they begin to listen.
    expect(asked - askedBefore).toBeLessThan(10)
  })

  it('a result of another instance reaches all waiting calls at once', async () => {
    const store = createMemoryStore()
    const driver = memoryDriver({ store })
    let asked = 0
    const acquire = (...[claims, call]: Parameters<typeof driver.acquire>) => {
      asked += 1
      return driver.acquire(claims, call)
    }
    const [a, b] = [jobsOn({ driver: memoryDriver({ store }) }), jobsOn({ driver: { ...driver, acquire } })]
    const [running, begun, go] = [gate(), gate(), gate()]
    const run = a.once(
      'key',
      () => {
        running.open()
        return go.opened.then(() => 'from a')
      },
      HOUR,
    )
    await running.opened
    b.on('waiting', () => begun.open())
    const waiting = Array.from({ length: 1_000 }, () => b.once('key', () => 'from b', HOUR))
    await begun.opened
    const askedBefore = await settled(() => asked)
    go.open()
    expect(new Set(await Promise.all([run, ...waiting]))).toEqual(new Set(['from a']))
    expect(asked - askedBefore).toBeLessThan(10)
  })

  it('a call that is aborted while others get the result has its own error', async () => {
    const jobs = jobsOn()
    const [waits, go] = [gate(), gate()]
    const abort = new AbortController()
    const run = jobs.once('key', () => go.opened.then(() => 'done'), HOUR)
    jobs.on('waiting', () => waits.open())
    const aborted = jobs.once('key', () => 'not this', { ...HOUR, signal: abort.signal })
    const patient = jobs.once('key', () => 'not this', { ...HOUR, signal: new AbortController().signal })
    await waits.opened
    abort.abort()
    go.open()
    await expect(aborted).rejects.toThrow(AbortedError)
    expect(await Promise.all([run, patient])).toEqual(['done', 'done'])
  })

  it('a run that fails rejects with its own error, keeps nothing, and can be repeated at once', async () => {
    const [a, b] = twoInstances()
    const failing = async () => {
      throw new Error('no paper')
    }
    await expect(a.once('key', failing, HOUR)).rejects.toThrow('no paper')
    expect(await b.once('key', () => 'printed', { ...HOUR, blockingTimeoutSeconds: 0 })).toBe('printed')
  })

  it('a result is kept for its period from the end of the run, also after its instance is closed', async () => {
    const store = createMemoryStore()
    const first = jobsOn({ driver: memoryDriver({ store }) })
    expect(await first.once('key', () => 1, { forSeconds: 1.5 })).toBe(1)
    await first.close()
    const second = jobsOn({ driver: memoryDriver({ store }) })
    expect(await second.once('key', () => 2, { forSeconds: 1.5 })).toBe(1)
    await sleep(1_550) // the period
    expect(await second.once('key', () => 2, { forSeconds: 1.5 })).toBe(2)
  })

  it('undefined and null are results', async () => {
    const jobs = jobsOn()
    let runs = 0
    const nothing = async (): Promise<void> => {
      runs += 1
    }
    expect(await jobs.once('void', nothing, HOUR)).toBeUndefined()
    expect(await jobs.once('void', nothing, HOUR)).toBeUndefined()
    expect(await jobs.once('null', () => null, HOUR)).toBeNull()
    expect(await jobs.once('null', () => 1, HOUR)).toBeNull()
    expect(runs).toBe(1)
  })

  it.each<[name: string, result: unknown, why: string]>([
    ['no JSON', new Date(), 'result must be a value that JSON keeps unchanged'],
    ['too large', 'x'.repeat(20_000), 'at most 16368 bytes as JSON (it has 20002)'],
    [
      'longer as JSON than a string can be',
      '\u0001'.repeat(100_000_000),
      'result cannot be encoded as JSON: Invalid string',
    ],
    [
      'a getter throws',
      {
        get total() {
          throw new Error('no total')
        },
      },
      'result cannot be encoded as JSON: no total',
    ],
    [
      'a message that no store can keep',
      {
        get a() {
          throw new Error(`\0\ud800${'😀'.repeat(600)}`)
        },
      },
      ' was not kept: ',
    ],
    [
      'a message that is cut between surrogates',
      { [`${'x'.repeat(54)}${'😀'.repeat(600)}`]: new Date() },
      ' was not kept: ',
    ],
    ...Object.entries(notJson).map(
      ([name, value]) => [name, [value], ' was not kept: '] satisfies [string, unknown, string],
    ),
    ['a proxy that cannot be awaited', notJson['a proxy that refuses everything'], ' was not kept: '],
  ])(
    'a result that cannot be kept (%s) is an error for every caller, and the job does not run again',
    async (_, result, why) => {
      const [a, b] = twoInstances()
      let runs = 0
      const work = () => {
        runs += 1
        return result
      }
      for (const jobs of [a, b, a]) {
        const told = await jobs.once('key', work, HOUR).catch((error: unknown) => error)
        expect(told).toBeInstanceOf(ResultNotKeptError)
        expect(String(told)).toContain(why)
        expect(isStorable(String(told))).toBe(true)
      }
      expect(runs).toBe(1)
    },
  )

  it('forget lets a job run again', async () => {
    const [a, b] = twoInstances()
    expect(await a.forget('key')).toBe(false)
    await a.once('key', () => 1, HOUR)
    expect(await b.forget('key')).toBe(true)
    expect(await a.once('key', () => 2, HOUR)).toBe(2)
  })

  it('a run whose lease is lost keeps nothing, and its successor has a higher token', async () => {
    const store = createMemoryStore()
    const network = faultyNetwork(memoryDriver({ store }))
    const cutOff = jobsOn({ driver: network.driver, callTimeoutSeconds: 0.05 })
    const other = jobsOn({ driver: memoryDriver({ store }) })
    const tokens: number[] = []
    const begun = gate()
    const stale = cutOff.once(
      'key',
      async ({ fencingToken, signal }) => {
        tokens.push(fencingToken)
        begun.open()
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
        return 'stale'
      },
      { ...HOUR, timeoutSeconds: 0.3 },
    )
    const staleEnd = expect(stale).rejects.toThrow(LeaseLostError)
    await begun.opened
    network.cut()
    const taken = await other.once(
      'key',
      ({ fencingToken }) => {
        tokens.push(fencingToken)
        return 'taken over'
      },
      HOUR,
    )
    await staleEnd
    network.heal()
    expect(taken).toBe('taken over')
    expect(await cutOff.once('key', () => 'again', HOUR)).toBe('taken over')
    expect(tokens[1]).toBeGreaterThan(tokens[0] as number)
  })

  it('a run whose lease was ended by force rejects and keeps nothing; its successor keeps its result', async () => {
    const store = createMemoryStore()
    const [a, b] = [jobsOn({ driver: memoryDriver({ store }) }), jobsOn({ driver: memoryDriver({ store }) })]
    const operator = new DistributedLock({ driver: memoryDriver({ store }) })
    opened.push(operator)
    const [begun, end, bothRun, endOther] = [gate(), gate(), gate(), gate()]
    const forced = a.once(
      'key',
      async () => {
        begun.open()
        await end.opened
        return 'forced'
      },
      HOUR,
    )
    const rejected = expect(forced).rejects.toThrow(LeaseLostError)
    await begun.opened
    // Between two heartbeats: the run does not know of it when it ends.
    expect(await operator.forceRelease('once:key:run', { by: 'operator' })).toHaveLength(1)
    const other = b.once(
      'key',
      async () => {
        bothRun.open()
        await endOther.opened
        return 'other'
      },
      HOUR,
    )
    await bothRun.opened
    end.open()
    await rejected
    endOther.open()
    expect(await other).toBe('other')
    expect(await a.once('key', () => 'again', HOUR)).toBe('other')
  })

  it('a call does not get a result that was looked up before it began, however late the answer arrives', async () => {
    const driver = memoryDriver()
    const [looked, answer] = [gate(), gate()]
    let isLate = false
    const inspect: typeof driver.inspect = async (query) => {
      const page = await driver.inspect(query)
      if (!isLate) return page
      isLate = false
      looked.open()
      await answer.opened
      return page
    }
    const [mine, others] = [jobsOn({ driver: { ...driver, inspect } }), jobsOn({ driver })]
    expect(await mine.once('key', () => 'old', HOUR)).toBe('old')
    isLate = true
    const early = mine.once('key', () => 'not this', HOUR)
    await looked.opened
    // The period of the old result is over, and the job runs again.
    expect(await others.forget('key')).toBe(true)
    const [begun, end, waits] = [gate(), gate(), gate()]
    const run = others.once(
      'key',
      async () => {
        begun.open()
        await end.opened
        return 'new'
      },
      HOUR,
    )
    await begun.opened
    mine.on('waiting', () => waits.open())
    const later = mine.once('key', () => 'not this', HOUR)
    await waits.opened
    answer.open()
    expect(await early).toBe('old')
    end.open()
    expect(await Promise.all([run, later])).toEqual(['new', 'new'])
  })

  it('after a short outage at the end of the run, the result is kept', async () => {
    const store = createMemoryStore()
    const network = faultyNetwork(memoryDriver({ store }))
    const jobs = jobsOn({ driver: network.driver, callTimeoutSeconds: 0.05 })
    const kept = await jobs.once(
      'key',
      () => {
        network.cut()
        setTimeout(() => network.heal(), 200)
        return 'kept'
      },
      HOUR,
    )
    expect(kept).toBe('kept')
    expect(await jobsOn({ driver: memoryDriver({ store }) }).once('key', () => 'again', HOUR)).toBe('kept')
  })

  it('in a long outage, the error says that the job ran and that the rest is unknown', async () => {
    const network = faultyNetwork(memoryDriver())
    const jobs = jobsOn({ driver: network.driver, callTimeoutSeconds: 0.05 })
    const run = jobs.once('key', () => network.cut(), { ...HOUR, timeoutSeconds: 0.3 })
    await expect(run).rejects.toThrow('the job "key" ran, but whether its result is kept is not known')
    network.heal()
  })

  it('a wait can be aborted, and ends with the instance', async () => {
    const [a, b] = twoInstances()
    const [begun, go] = [gate(), gate()]
    const waits = (): Promise<void> => {
      begun.open()
      return go.opened
    }
    const first = a.once('key', waits, HOUR)
    await begun.opened
    const abort = new AbortController()
    const given = b.once('key', () => 1, { ...HOUR, signal: abort.signal })
    abort.abort()
    await expect(given).rejects.toBeInstanceOf(AbortedError)
    const closed = expect(b.once('key', () => 1, HOUR)).rejects.toBeInstanceOf(ClosedError)
    await b.close()
    await closed
    go.open()
    await first
  })

  it('a run that asks for its own result gets a DeadlockError at once; the key is free afterwards', async () => {
    const [a] = twoInstances()
    const nested = a.once('key', () => a.once('key', () => 'never', HOUR), HOUR)
    await expect(nested).rejects.toBeInstanceOf(DeadlockError)
    await expect(nested).rejects.toThrow(/wait for itself on "once:key:run": a run has no result before it has ended/)
    expect(await a.once('key', () => a.once('another', () => 'inside', HOUR), HOUR)).toBe('inside')
    expect(await a.once('key', () => a.once('key', () => 'never', HOUR), HOUR)).toBe('inside')
  })

  it('a run and a lock that wait for each other are a detected deadlock, also across instances', async () => {
    const driver = memoryDriver()
    const soon = { driver, deadlockAfterSeconds: 0.05 }
    const [jobs, others, lock] = [jobsOn(soon), jobsOn(soon), new DistributedLock(soon)]
    opened.push(lock)
    const [running, locked] = [gate(), gate()]
    const ends = await Promise.allSettled([
      jobs.once(
        'key',
        async () => {
          running.open()
          await locked.opened
          return lock.withLock('a', () => 'locked', { blockingTimeoutSeconds: 60 })
        },
        HOUR,
      ),
      lock.withLock('a', async () => {
        locked.open()
        await running.opened
        return jobs.once('key', () => 'ran', HOUR)
      }),
    ])
    expect(ends.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
    expect(ends.find((end) => end.status === 'rejected')?.reason).toBeInstanceOf(DeadlockError)
    const nested = jobs.once('two', () => others.once('two', () => 'never', HOUR), HOUR)
    await expect(nested).rejects.toBeInstanceOf(DeadlockError)
  })

  it('closing during a run keeps nothing: the run has lost its lease', async () => {
    const store = createMemoryStore()
    const jobs = jobsOn({ driver: memoryDriver({ store }) })
    const run = jobs.once('key', () => jobs.close({ deadlineSeconds: 0.1 }), HOUR)
    await expect(run).rejects.toBeInstanceOf(LeaseLostError)
    expect(await jobsOn({ driver: memoryDriver({ store }) }).once('key', () => 2, HOUR)).toBe(2)
  })

  it('a run does not start if its lease ended while it looked for a result', async () => {
    const inner = memoryDriver()
    const looking = gate()
    const answer = gate()
    let looks = 0
    const inspect: typeof inner.inspect = async (query) => {
      const page = await inner.inspect(query)
      looks += 1
      // The first look comes before the claim.
      if (looks === 2) {
        looking.open()
        await answer.opened
      }
      return page
    }
    const jobs = jobsOn({ driver: { ...inner, inspect } })
    let isStarted = false
    const run = jobs.once(
      'key',
      () => {
        isStarted = true
      },
      HOUR,
    )
    const rejected = expect(run).rejects.toBeInstanceOf(LeaseLostError)
    await looking.opened
    await jobs.close()
    answer.open()
    await rejected
    expect(isStarted).toBe(false)
  })

  it('bad input is rejected before anything is sent', async () => {
    const jobs = jobsOn()
    const fn = () => 1
    for (const key of ['', 'x'.repeat(246), 'a\0', 7 as never]) {
      await expect(jobs.once(key, fn, HOUR)).rejects.toMatchObject({ argument: 'key' })
    }
    expect(await jobs.once('x'.repeat(245), fn, HOUR)).toBe(1)
    await expect(jobs.once('key', fn, {} as never)).rejects.toMatchObject({ argument: 'forSeconds' })
    await expect(jobs.once('key', fn, { forSeconds: 31_536_001 })).rejects.toMatchObject({ argument: 'forSeconds' })
    expect(await jobs.once('a year', fn, { forSeconds: 31_536_000 })).toBe(1)
    await expect(jobs.once('key', 1 as never, HOUR)).rejects.toMatchObject({ argument: 'fn' })
    expect(() => jobs.everyTick('name', fn, { everySeconds: 0 })).toThrow('everySeconds must be')
    expect(() => jobs.everyTick('name', fn, { forSeconds: -1 })).toThrow('forSeconds must be')
    expect(() => jobs.everyTick('', fn)).toThrow('name must be')
    expect(() => jobs.everyTick('x'.repeat(181), fn)).toThrow(
      'name must be a string of 1 to 180 characters, without NUL and without lone surrogates, but is a string of 181',
    )
    const longest = jobs.everyTick('x'.repeat(180), fn)
    const job = (id: string) => ({ id, timestamp: 0 })
    expect(await longest(new Date())).toEqual({ ran: true, result: 1 })
    expect(await longest(job('y'.repeat(64)))).toEqual({ ran: true, result: 1 })
    expect(() => jobs.everyTick('a', fn, { missed: 'none' as never })).toThrow(
      "missed must be one of 'skip', 'last', 'all'",
    )
    expect(() => jobs.everyTick('a', fn, { overlap: 1 as never })).toThrow('overlap must be')
    await expect(longest(job('y'.repeat(65)))).rejects.toMatchObject({ argument: 'tick' })
    await expect(jobs.everyTick('a', fn)(job('y'.repeat(65)))).rejects.toMatchObject({ argument: 'tick' })
    await expect(jobs.everyTick('name', fn)()).rejects.toMatchObject({ argument: 'everySeconds' })
  })

  it('a driver whose leases end with their connection is rejected with the reason', async () => {
    const url = inject('servers').postgres?.replace(/^postgres(?:ql)?:/, 'postgres+advisory:') ?? ''
    const driver = await openPostgresAdvisory(url)
    await expect(jobsOn({ driver }).once('key', () => 1, HOUR)).rejects.toThrow(UnsupportedError)
    await expect(jobsOn({ driver }).once('key', () => 1, HOUR)).rejects.toThrow('could not outlive the process')
    await driver.close()
  })

  it('a run does not exclude a lock with the name of its key', async () => {
    const driver = memoryDriver()
    const lock = new DistributedLock({ driver })
    opened.push(lock)
    await lock.acquire('key')
    expect(await jobsOn({ driver }).once('key', () => 1, HOUR)).toBe(1)
  })
})
