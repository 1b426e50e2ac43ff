import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { createMemoryStore, memoryDriver } from '../../src/drivers/memory.ts'
import { DistributedLock, type Lease } from '../../src/index.ts'
import { prometheusMetrics } from '../../src/telemetry/prometheus.ts'
import { Population } from '../../src/telemetry/recorder.ts'
import { type DriverMode, faultyDriver, noFaults } from '../../src/testing/faulty-driver.ts'
import { seededRandom, VirtualTime } from '../../src/testing/virtual-clock.ts'

const NAMES = ['order:1', 'order:2', 'report']
const MODES: readonly DriverMode[] = ['queue', 'hands over', 'wakes', 'silent']
const FAULTY = {
  ...noFaults,
  lostRequest: 0.1,
  lostReply: 0.1,
  lateReply: 0.05,
  failing: 0.1,
  lateMs: [0, 20_000],
} as const

type Step =
  | { type: 'claim'; at: number; name: number; waits: boolean; heartbeat: boolean }
  | { type: 'release' | 'abort' | 'hand over' | 'force' | 'close'; which: number }
  | { type: 'run' | 'stall'; ms: number }

interface History {
  seed: number
  mode: DriverMode
  isFaulty: boolean
  steps: Step[]
}

const which = fc.nat(9)
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      type: fc.constant('claim' as const),
      at: fc.nat(1),
      name: fc.nat(2),
      waits: fc.boolean(),
      heartbeat: fc.boolean(),
    }),
  },
  fc.record({ type: fc.constantFrom('release', 'abort', 'hand over', 'force'), which }),
  fc.record({ type: fc.constantFrom('run', 'stall'), ms: fc.constantFrom(1, 100, 3_000, 20_000) }),
)
const history: fc.Arbitrary<History> = fc.record({
  seed: fc.nat(),
  mode: fc.constantFrom(...MODES),
  isFaulty: fc.boolean(),
  steps: fc.array(
    fc.oneof({ weight: 20, arbitrary: step }, fc.record({ type: fc.constant('close' as const), which })),
    {
      maxLength: 25,
    },
  ),
})

describe('the gauges of held leases and of waiters', () => {
  it('are what the process holds and waits for, and 0 when everything has ended', async () => {
    await fc.assert(fc.asyncProperty(history, play), { numRuns: 500 })
  })

  it('count no lease twice, and none below 0', () => {
    const population = new Population()
    population.add('a', 'x', 1)
    population.add('a', 'y', 2)
    population.remove('b')
    expect([...population.read(['x', 'y'])]).toEqual([
      { group: 'x', count: 0, sinceMs: undefined },
      { group: 'y', count: 1, sinceMs: 2 },
    ])
    expect([population.remove('a'), population.remove('a')]).toEqual([true, false])
  })
})

async function play({ seed, mode, isFaulty, steps }: History): Promise<void> {
  const time = new VirtualTime()
  const random = seededRandom(seed)
  const store = memoryDriver({ store: createMemoryStore(time.clock()) })
  let faults = isFaulty ? FAULTY : noFaults
  const locks = [0, 1].map(() => {
    const clock = time.clock()
    const driver = faultyDriver(store, { time, clock, random, faults: () => faults, mode })
    return new DistributedLock({ driver, clock, random })
  })
  const metrics = prometheusMetrics({ instances: locks, templates: ['order:{id}'] })
  const leases: Lease[] = []
  const aborts: AbortController[] = []
  let pending = 0

  const quietly = (work: Promise<unknown>): void => void work.catch(() => {})
  const take = async (claim: Promise<Lease>): Promise<void> => {
    pending += 1
    try {
      leases.push(await claim)
    } finally {
      pending -= 1
    }
  }
  const picked = <T>(list: readonly T[], index: number): T | undefined => list[index % Math.max(1, list.length)]

  function perform(each: Step): Promise<unknown> | undefined {
    if ('ms' in each) return each.type === 'run' ? time.run(each.ms) : void time.stall(each.ms)
    if (each.type === 'claim') {
      const abort = new AbortController()
      aborts.push(abort)
      const options = { timeoutSeconds: 9, heartbeat: each.heartbeat, signal: abort.signal }
      const waits = each.waits ? { blockingTimeoutSeconds: 15 } : {}
      return void quietly(
        take((locks[each.at] as DistributedLock).hold(NAMES[each.name] as string, { ...options, ...waits })),
      )
    }
    if (each.type === 'abort') return void picked(aborts, each.which)?.abort()
    if (each.type === 'force')
      return void quietly((locks[0] as DistributedLock).forceRelease(NAMES[each.which % 3] as string, { by: 'test' }))
    if (each.type === 'close') return void quietly((locks[each.which % 2] as DistributedLock).close())
    const lease = picked(leases, each.which)
    if (lease === undefined) return undefined
    if (each.type === 'release') return void quietly(lease.release())
    return void quietly(
      lease.serialize().then((text) => take((locks[each.which % 2] as DistributedLock).restore(text))),
    )
  }

  for (const each of steps) {
    await perform(each)
    await time.run(1)
    const held = leases.filter((lease) => lease.held).length
    // Without faults, every answer is there by now, so the two can be compared.
    if (!isFaulty) expect(read(metrics.text())).toEqual({ held, waiters: pending })
  }
  faults = noFaults
  for (const lock of locks) quietly(lock.close())
  await time.run(600_000)
  expect(pending).toBe(0)
  expect(read(metrics.text())).toEqual({ held: 0, waiters: 0 })
  metrics.close()
}

/** The sums over all locks. */
function read(text: string): { held: number; waiters: number } {
  const sum = (name: string): number =>
    [...text.matchAll(new RegExp(`^${name}\\{.*\\} (\\S+)$`, 'gm'))].reduce(
      (total, [, value]) => total + Number(value),
      0,
    )
  return { held: sum('holdfast_lock_held'), waiters: sum('holdfast_lock_waiters') }
}
