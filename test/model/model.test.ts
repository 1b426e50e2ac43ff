import { describe, expect, it } from 'vitest'
import type { Driver } from '../../src/core/driver.ts'
import { explained } from './explain.ts'
import { play, type Report } from './play.ts'
import { CALLS, type Call, programFrom } from './program.ts'
import { type Breaks, virtualWorld } from './virtual-world.ts'

const seed = process.env['HOLDFAST_MODEL_SEED']
const runs = Number(process.env['HOLDFAST_MODEL_RUNS'] ?? (seed === undefined ? 6_000 : 1))
const first = Number(seed ?? 1)

describe(`random programs on memory, in virtual time, with the seeds ${first} to ${first + runs - 1}`, () => {
  const ends = new Map<string, number>()
  let steps = 0

  it('keep the rules of the model', { timeout: 120_000 + runs * 20 }, async () => {
    for (let at = first; at < first + runs; at += 1) {
      const program = programFrom(at)
      const report = await play(program, virtualWorld(program))
      if (report.violations.length > 0) {
        const command = `HOLDFAST_MODEL_SEED=${at} npx vitest run test/model/model.test.ts`
        throw new Error(await explained(program, report, virtualWorld, command))
      }
      steps += report.steps
      for (const [end, count] of report.ends) ends.set(end, (ends.get(end) ?? 0) + count)
    }
  })

  it.skipIf(runs < 1_000)('make every call, and see every way in which it ends', () => {
    const rare = [...CALLS.map((call) => `${call}: done`), ...REFUSED].filter(
      (end) => (ends.get(end) ?? 0) < runs / 1_000,
    )
    expect(rare).toEqual([])
    expect(steps).toBeGreaterThan(runs * 10)
  })
})

/** Ends that are no success, and that are to be seen. */
const REFUSED = [
  'acquire: ABORTED',
  'with: NOT_ACQUIRED',
  'with: ABORTED',
  'with: CLOSED',
  'with: LEASE_LOST',
  'with: thrown',
  'withLocks: LEASE_LOST',
  'serialize: UNSUPPORTED',
] satisfies `${Call}: ${string}`[]

describe.skipIf(seed !== undefined)('the model', () => {
  it('runs a program in the same way each time', async () => {
    const once = async (): Promise<Report> => play(programFrom(12), virtualWorld(programFrom(12)))
    const { trace } = await once()
    expect(trace.length).toBeGreaterThan(10)
    expect((await once()).trace).toEqual(trace)
  })

  const broken: [string, rule: string, Breaks][] = [
    ['grants what is already granted', 'two are inside', grantingAlways],
    ['releases nothing', 'nothing is left', (driver) => ({ ...driver, release: async (refs) => refs.map(() => true) })],
    [
      'renews nothing, and says that it did',
      'two are inside',
      (driver) => ({ ...driver, renew: async (renewals) => renewals.map(() => 'renewed' as const) }),
    ],
    [
      'gives one token to all',
      'tokens rise',
      (driver) => ({
        ...driver,
        acquire: async (...call) =>
          (await driver.acquire(...call)).map((answer) =>
            answer instanceof Error || !answer.granted ? answer : { ...answer, fencingToken: 1 },
          ),
      }),
    ],
  ]
  it.each(broken)('finds a store that %s', async (_what, rule, breaks) => {
    const rules = new Set<string>()
    for (let at = 1; at <= 60 && !rules.has(rule); at += 1) {
      const program = programFrom(at)
      for (const violation of (await play(program, virtualWorld(program, breaks))).violations) rules.add(violation.rule)
    }
    expect([...rules]).toContain(rule)
  })
})

/** A claim that is refused gets a lease of which the store knows nothing. */
function grantingAlways(driver: Driver): Driver {
  let last = 0
  const madeUp = new Set<string>()
  return {
    ...driver,
    async acquire(...call) {
      const [claims] = call
      const answers = await driver.acquire(...call)
      return answers.map((answer, at) => {
        const { claimId = '', ttlMs = 0 } = claims[at] ?? {}
        if (answer instanceof Error) return answer
        if (answer.granted) last = answer.fencingToken
        else madeUp.add(claimId)
        return answer.granted ? answer : { granted: true, fencingToken: ++last, ttlMs, acquiredAtMs: 0 }
      })
    },
    async renew(renewals) {
      const answers = await driver.renew(renewals)
      return renewals.map(({ claimId }, at) => (madeUp.has(claimId) ? 'renewed' : (answers[at] ?? 'lost')))
    },
    async release(leases) {
      const answers = await driver.release(leases)
      return leases.map(({ claimId }, at) => madeUp.has(claimId) || (answers[at] ?? false))
    },
  }
}
