import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'
import type { AcquireAnswer, Claim, Driver, RateRequest, Renewal } from '../../src/core/driver.ts'
import { capabilities, createMemoryStore, memoryDriver } from '../../src/drivers/memory.ts'
import { type ConformanceStore, driverConformance, type TestRunner } from '../../src/testing/index.ts'

/** Each of these drivers once passed the suite. The test that is named beside it catches it now. */
const brokenDrivers: readonly (readonly [what: string, caughtBy: string, make: (driver: Driver) => Driver])[] = [
  [
    'keeps a lease of an hour for a minute',
    'a lease of an hour is kept for an hour',
    (driver) => withTtl(driver, (ttlMs) => Math.min(ttlMs, 60_000)),
  ],
  [
    'ends a lease at once whose time to live is above 2^31 ms',
    'a lease of 40 days is kept for 40 days',
    (driver) => withTtl(driver, (ttlMs) => (ttlMs > 2 ** 31 ? 1 : ttlMs)),
  ],
  [
    'fails for lists of more than 250 entries',
    'a list of 1,000 names',
    (driver) => ({
      ...driver,
      async acquire(claims, call) {
        if (claims.length > 250) throw new Error('too many')
        return driver.acquire(claims, call)
      },
    }),
  ],
  [
    'counts permits in a byte',
    '256 permits are counted exactly',
    (driver) => ({
      ...driver,
      acquire: (claims, call) =>
        driver.acquire(
          claims.map((claim) => ({ ...claim, permits: claim.permits % 256 })),
          call,
        ),
    }),
  ],
  ['begins its tokens anew after a second of idleness', 'after a name was idle for a second', withForgetfulTokens],
  [
    'lists the first 50 waiters only',
    'every one of 150 waiters is shown',
    (driver) => ({
      ...driver,
      async inspect(query) {
        const page = await driver.inspect(query)
        return { ...page, waiters: page.waiters.slice(0, 50) }
      },
    }),
  ],
  [
    'allows one unit too many in bursts above 100',
    'a burst of 150 is exactly that many units',
    (driver) => ({
      ...driver,
      consume: async (requests) =>
        (await driver.consume?.(requests.map((request) => (isLarge(request) ? oneMore(request) : request)))) ?? [],
    }),
  ],
  [
    'grants the free names of a group',
    'a group with one held name is refused, and the refusal says which',
    withoutGroups,
  ],
  [
    'grants the free names of a group, and releases them again',
    'no other client ever finds the others taken',
    (driver) => ({
      ...driver,
      async acquire(claims, call) {
        const answers = await withoutGroups(driver).acquire(claims, call)
        if (!claims.some(({ group }) => group) || answers.every(isGrant)) return answers
        await driver.release(claims.filter((_, index) => isGrant(answers[index])))
        return answers.map((answer) => (isGrant(answer) ? { granted: false, free: true } : answer))
      },
    }),
  ],
  [
    'splits a list in the middle of a group',
    'a group of 100 claims in a long list is not split',
    (driver) => ({
      ...driver,
      acquire: async (claims, call) => [
        ...(await driver.acquire(claims.slice(0, 128), call)),
        ...(await driver.acquire(claims.slice(128), call)),
      ],
    }),
  ],
  [
    'refuses a group that asks again because of its own leases',
    'a group that asks again gets the same leases',
    (driver) => ({
      ...driver,
      async acquire(claims, call) {
        const { leases } = await driver.inspect({})
        const known = new Set(leases.map(({ claimId }) => claimId))
        if (!claims.some(({ group, claimId }) => group && known.has(claimId))) return driver.acquire(claims, call)
        return claims.map(() => ({ granted: false }))
      },
    }),
  ],
]

describe('the conformance suite', () => {
  it.each(brokenDrivers)('catches a driver that %s', async (_, caughtBy, make) => {
    const cases = casesOf(make).filter(({ title }) => title.includes(caughtBy))
    expect(cases.length).toBeGreaterThan(0)
    const results = await Promise.allSettled(cases.map(({ run }) => run()))
    expect(results.map(({ status }) => status)).toContain('rejected')
  })

  it.each(brokenDrivers)('passes a correct driver, which does not do this: %s', async (_, caughtBy) => {
    for (const { title, run } of casesOf((driver) => driver)) if (title.includes(caughtBy)) await run()
  })
})

describe('a runner that ends with the first unhandled rejection', () => {
  /** Runs the cases of the suite at the same time, and prints how many have failed. */
  const source = `
    import { capabilities, createMemoryStore, memoryDriver } from 'holdfast/drivers/memory'
    import { driverConformance } from 'holdfast/testing'
    const cases = []
    const it = Object.assign((_, run) => cases.push(run), { skip() {} })
    const runner = { describe: (_, body) => body(), it, beforeAll: (body) => { opening = body() }, afterAll() {} }
    let opening
    async function open() {
      const store = createMemoryStore()
      // It hides everything, so tests that look for a waiter fail while claims wait.
      const inspect = async () => ({ leases: [], waiters: [] })
      return { driver: async () => ({ ...memoryDriver({ store }), inspect }), close: async () => {} }
    }
    driverConformance({ runner, name: 'broken', capabilities, open, lockOnly: true })
    await opening
    const results = await Promise.allSettled(cases.map((run) => run()))
    console.log(results.filter(({ status }) => status === 'rejected').length)
    process.exit()`

  it('reaches the end of the suite with a broken driver', { timeout: 120_000 }, async () => {
    const run = promisify(execFile)(process.execPath, ['--input-type=module', '-e', source])
    const { stdout, stderr } = await run.catch((error: { stdout: string; stderr: string }) => error)
    expect(stderr).not.toContain('triggerUncaughtException')
    expect(Number(stdout)).toBeGreaterThan(50)
  })
})

interface Case {
  readonly title: string
  run(): Promise<void>
}

/** The tests of the suite, registered but not run. */
function casesOf(make: (driver: Driver) => Driver): Case[] {
  const cases: Case[] = []
  let opening = Promise.resolve()
  const register = (title: string, body: () => Promise<void>): void => {
    cases.push({ title, run: () => opening.then(body) })
  }
  const runner: TestRunner = {
    describe: (_, body) => body(),
    it: Object.assign(register, { skip: () => undefined }),
    beforeAll(body) {
      opening = body()
    },
    afterAll: () => undefined,
  }
  const open = async (): Promise<ConformanceStore> => {
    const store = createMemoryStore()
    return { driver: async () => make(memoryDriver({ store })), close: async () => {} }
  }
  driverConformance({ runner, name: 'broken', capabilities, open })
  return cases
}

function withoutGroups(driver: Driver): Driver {
  const alone = ({ group: _, ...claim }: Claim): Claim => claim
  return { ...driver, acquire: (claims, call) => driver.acquire(claims.map(alone), call) }
}

const isGrant = (answer: unknown): boolean => (answer as AcquireAnswer | undefined)?.granted === true

function withTtl(driver: Driver, change: (ttlMs: number) => number): Driver {
  const changed = <Request extends Claim | Renewal>(requests: readonly Request[]): Request[] =>
    requests.map((request) => ({ ...request, ttlMs: change(request.ttlMs) }))
  return {
    ...driver,
    acquire: (claims, call) => driver.acquire(changed(claims), call),
    renew: (renewals) => driver.renew(changed(renewals)),
  }
}

/** Tokens that count from 1 for each name, and from 1 again after it was idle. */
function withForgetfulTokens(driver: Driver): Driver {
  return {
    ...driver,
    async acquire(claims, call) {
      const answers = await driver.acquire(claims, call)
      return answers.map((answer, index) => {
        if (answer instanceof Error || !answer.granted) return answer
        const lockName = (claims[index] as Claim).lockName
        const last = lastTokens.get(lockName)
        const count = last === undefined || performance.now() - last.atMs > 1_000 ? 1 : last.count + 1
        lastTokens.set(lockName, { count, atMs: performance.now() })
        return { ...answer, fencingToken: count }
      })
    },
    // By the claim alone, because the tokens are not those of the store.
    release: (leases) => driver.release(leases.map(({ lockName, claimId }) => ({ lockName, claimId }))),
  }
}

const lastTokens = new Map<string, { readonly count: number; readonly atMs: number }>()

const isLarge = ({ limits }: RateRequest): boolean => limits.some(({ burst }) => burst > 100)

const oneMore = (request: RateRequest): RateRequest => ({
  ...request,
  limits: request.limits.map((limit) => ({ ...limit, burst: limit.burst + 1 })),
})
