import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Driver } from '../../src/core/driver.ts'
import type { Clock } from '../../src/core/time/clock.ts'
import { createMemoryStore, memoryDriver } from '../../src/drivers/memory.ts'
import { noFaults } from '../../src/testing/faulty-driver.ts'
import { type Kind, type Plan, planFrom } from './plan.ts'
import { simplerPlans } from './simplify.ts'
import { type SimulationReport, simulate } from './simulate.ts'

const openStore = (clock: Clock): Driver => memoryDriver({ store: createMemoryStore(clock) })

const histories = Number(process.env['HOLDFAST_HISTORIES'] ?? 2_500)
const replayed = process.env['HOLDFAST_SEED']

describe.skipIf(replayed !== undefined)('core and primitives in virtual time, on a store that fails', () => {
  const kinds = new Map<Kind, number>()
  const totals = { grants: 0, handedOver: 0, losses: 0, givenUp: 0, lateAnswers: 0, refusedWrites: 0 }

  it(`keep rules 2, 3, 5, 6, 7, 8, 10 and 14 in ${histories} histories with faults`, {
    timeout: 60_000 + histories * 60,
  }, async () => {
    const keepsTheRules = fc.asyncProperty(new PlanArbitrary(), async (plan) => {
      const report = await simulate(plan, { openStore })
      if (report.violations.length > 0) throw new Error(await explained(report))
      kinds.set(plan.kind, (kinds.get(plan.kind) ?? 0) + 1)
      for (const each of Object.keys(totals) as (keyof typeof totals)[]) totals[each] += report.counts[each]
    })
    // An ordinary run has the same histories every time, so that a failure means a change. A long run finds new ones.
    const seed = process.env['HOLDFAST_HISTORIES'] === undefined ? { seed: 20_261_115 } : {}
    await fc.assert(keepsTheRules, { numRuns: histories, endOnFailure: false, ...seed })
  })

  it('cover every kind of fault and job', () => {
    expect([...kinds.keys()].sort()).toEqual(
      ['calm', 'clients', 'data lost', 'network', 'store back', 'store forward'].sort(),
    )
    for (const [what, count] of Object.entries(totals)) expect(count, what).toBeGreaterThan(histories / 500)
  })

  it('signal a loss in time, although the process makes one short claim after another (rule 3)', async () => {
    const report = await simulate(busy, { openStore })
    expect(report.violations).toEqual([])
    expect(report.counts.losses).toBe(1)
  })

  it('give the same history for the same seed', async () => {
    const [first, second] = [
      await simulate(7, { openStore, trace: true }),
      await simulate(7, { openStore, trace: true }),
    ]
    expect(first.trace.length).toBeGreaterThan(10)
    expect(second.trace).toEqual(first.trace)
  })
})

describe.skipIf(replayed !== undefined)('a store that breaks its promises is detected', () => {
  const faulty: [string, (driver: Driver, clock: Clock) => Driver][] = [
    [
      'grants what is already granted',
      (driver, clock) => ({ ...driver, acquire: (claims, call) => openStore(clock).acquire(claims, call) }),
    ],
    ['refuses a claim its own lease', (driver) => ({ ...driver, acquire: refusingAgain(driver) })],
    ['gives the same token twice', (driver) => ({ ...driver, ...withCoarseTokens(driver) })],
    [
      'answers that it released what it did not',
      (driver) => ({ ...driver, release: async (leases) => leases.map(() => true) }),
    ],
    [
      'renews what has ended',
      (driver) => ({ ...driver, renew: async (renewals) => renewals.map(() => 'renewed' as const) }),
    ],
    ['tells no waiter', (driver) => ({ ...driver, listen: async () => async () => undefined })],
  ]

  it.each(faulty)('one that %s', async (_what, broken) => {
    let violations: readonly string[] = []
    for (let seed = 1; seed <= 300 && violations.length === 0; seed += 1) {
      const open = (clock: Clock): Driver => broken(openStore(clock), clock)
      violations = (await simulate(seed, { openStore: open })).violations
    }
    expect(violations).not.toEqual([])
  })
})

describe.skipIf(replayed === undefined)(`the history with the seed ${replayed}`, () => {
  it('keeps the rules', { timeout: 300_000 }, async () => {
    const report = await simulate(Number(replayed), { openStore })
    if (report.violations.length > 0) throw new Error(await explained(await simplified(report)))
  })
})

/** Each claim moves the only timer of its process. A lease expires in the middle of them. */
const busy: Plan = {
  ...planFrom(1),
  kind: 'network',
  mode: 'queue',
  faults: noFaults,
  faultsEndMs: 0,
  disturbances: [],
  processes: [
    {
      rate: 1,
      wallOffsetMs: 0,
      reacquire: 'refuse',
      tasks: [
        [
          {
            afterMs: 0,
            lockName: 'a',
            via: 'acquire',
            ttlMs: 50,
            waitMs: 0,
            heartbeat: false,
            minHoldMs: 0,
            acts: [
              { act: 'sleep', ms: 20 },
              { act: 'hammer', times: 1_000 },
            ],
            end: 'release',
          },
        ],
      ],
    },
  ],
}

/** Plans by their seeds. A failure is narrowed down by removing one part after the other. */
class PlanArbitrary extends fc.Arbitrary<Plan> {
  generate(random: fc.Random): fc.Value<Plan> {
    return new fc.Value(planFrom(random.nextInt(0, 2 ** 31 - 1)), undefined)
  }

  canShrinkWithoutContext(_value: unknown): _value is Plan {
    return false
  }

  shrink(plan: Plan): fc.Stream<fc.Value<Plan>> {
    return fc.stream(simplerPlans(plan)).map((simpler) => new fc.Value(simpler, undefined))
  }
}

async function simplified(report: SimulationReport): Promise<SimulationReport> {
  for (const plan of simplerPlans(report.plan)) {
    const simpler = await simulate(plan, { openStore })
    if (simpler.violations.length > 0) return simplified(simpler)
  }
  return report
}

/** Which rule was broken, what led to it, and how to replay it. */
async function explained({ plan, violations }: SimulationReport): Promise<string> {
  const { trace } = await simulate(plan, { openStore, trace: true })
  const until = trace.findIndex((line) => line.includes('VIOLATION'))
  return [
    ...violations,
    `HOLDFAST_SEED=${plan.seed} npx vitest run test/simulation/simulation.test.ts`,
    JSON.stringify(plan),
    ...trace.slice(Math.max(0, until - 60), until + 10),
  ].join('\n')
}

function refusingAgain(driver: Driver): Driver['acquire'] {
  const granted = new Set<string>()
  return async (claims, call) => {
    const answers = await driver.acquire(claims, call)
    return answers.map((answer, index) => {
      const claimId = claims[index]?.claimId ?? ''
      if (answer instanceof Error || !answer.granted) return answer
      if (granted.has(claimId)) return { granted: false }
      granted.add(claimId)
      return answer
    })
  }
}

/** Counts in seconds, so that two grants in one second have the same token. */
function withCoarseTokens(driver: Driver): Pick<Driver, 'acquire' | 'renew' | 'release'> {
  const tokens = new Map<string, number>()
  return {
    async acquire(claims, call) {
      const answers = await driver.acquire(claims, call)
      return answers.map((answer, index) => {
        if (answer instanceof Error || !answer.granted) return answer
        tokens.set(claims[index]?.claimId ?? '', answer.fencingToken)
        return { ...answer, fencingToken: Math.floor(answer.fencingToken / 1_000_000) }
      })
    },
    renew: (renewals) =>
      driver.renew(renewals.map((each) => ({ ...each, fencingToken: tokens.get(each.claimId) ?? 0 }))),
    release: (leases) => driver.release(leases.map(({ lockName, claimId }) => ({ lockName, claimId }))),
  }
}
