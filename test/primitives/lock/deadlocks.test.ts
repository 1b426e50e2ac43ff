import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, describe, expect, inject, it, vi } from 'vitest'
import type { InspectPage } from '../../../src/core/driver.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import {
  connect,
  DeadlockError,
  DistributedLock,
  type InstanceOptions,
  InvalidArgumentError,
  type Lease,
  ReadWriteLock,
  Semaphore,
} from '../../../src/index.ts'
import { makeFolder } from '../../harness/folders.ts'
import { gate } from '../../harness/gate.ts'
import { startWorker } from '../../harness/worker.ts'

const folder = makeFolder('deadlocks')
afterAll(() => folder.remove())

const stores: [name: string, url: () => string][] = [
  ['memory', () => `memory:${randomUUID()}`],
  ['sqlite', () => `sqlite:${join(folder.path, `${randomUUID()}.db`)}`],
  ['redis', () => inject('servers').redis?.[0] ?? ''],
  ['postgres', () => inject('servers').postgres ?? ''],
  ['postgres-advisory', () => (inject('servers').postgres ?? '').replace(/^postgres(ql)?:/, 'postgres+advisory:')],
]

const LONG = { blockingTimeoutSeconds: 60 }

describe('a deadlock is detected and named within 2 s', () => {
  it.concurrent.each(stores)(
    '%s',
    async (_, urlOf) => {
      const url = urlOf()
      await using a = new DistributedLock({ url, holderId: 'a' })
      await using b = new DistributedLock({ url, holderId: 'b' })
      const tookMs: number[] = []
      // A machine that is busy with other tests may be late, but not three times in a row.
      while (tookMs.length < 3 && !tookMs.some((each) => each < 2_000)) {
        const [x, y] = [randomUUID(), randomUUID()]
        const { error, ms } = await deadlock(a, x, b, y)
        expect(error).toBeInstanceOf(DeadlockError)
        expect((error as DeadlockError).cycle).toEqual(
          error.lockName === x
            ? [
                { holderId: 'b', lockName: x, heldBy: 'a' },
                { holderId: 'a', lockName: y, heldBy: 'b' },
              ]
            : [
                { holderId: 'a', lockName: y, heldBy: 'b' },
                { holderId: 'b', lockName: x, heldBy: 'a' },
              ],
        )
        expect(error.message).toContain(`waiting for "${error.lockName}" would never end`)
        tookMs.push(ms)
      }
      expect(Math.min(...tookMs), `${tookMs} ms`).toBeLessThan(2_000)
    },
    60_000,
  )
})

describe('failure 50: a call that is not awaited does not keep the locks around it', () => {
  const queued = stores.filter(([name]) => name !== 'postgres-advisory')
  const calls: [string, (lock: DistributedLock, name: string) => Promise<unknown>][] = [
    ['withLock', (lock, name) => lock.withLock(name, () => 'inner', LONG)],
    ['withLocks', (lock, name) => lock.withLocks([name], () => 'inner', LONG)],
  ]

  it.concurrent.each(queued)('%s', async (_, urlOf) => {
    const settings = { url: urlOf(), deadlockAfterSeconds: 0.3 }
    await using a = new DistributedLock({ ...settings, holderId: 'a' })
    await using b = new DistributedLock({ ...settings, holderId: 'b' })
    await Promise.all(
      calls.map(async ([, call]) => {
        const [x, y] = [randomUUID(), randomUUID()]
        let inner: Promise<unknown> | undefined
        const [held, taken] = [gate(), gate()]
        const outer = a.withLock(x, async () => {
          held.open()
          await taken.opened
          inner = call(a, y)
          inner.catch(() => undefined)
          // Long enough for two searches.
          await new Promise((resolve) => setTimeout(resolve, 1_500))
          return 'outer'
        })
        const other = b.withLock(y, async () => {
          await held.opened
          taken.open()
          return b.withLock(x, () => 'other', LONG)
        })
        expect(await Promise.all([outer, other])).toEqual(['outer', 'other'])
        expect(await inner).toBe('inner')
      }),
    )
  })

  it('but one that is awaited does, however it is awaited', async () => {
    const url = `memory:${randomUUID()}`
    await using a = new DistributedLock({ url, holderId: 'a', deadlockAfterSeconds: 0.2 })
    await using b = new DistributedLock({ url, holderId: 'b', deadlockAfterSeconds: 0.2 })
    const ways: ((inner: Promise<unknown>) => Promise<unknown>)[] = [
      (inner) => inner,
      (inner) => Promise.all([inner]),
      (inner) => inner.catch((error: unknown) => Promise.reject(error)),
      (inner) => inner.finally(() => undefined),
      (inner) => Promise.race([inner, new Promise(() => undefined)]),
    ]
    for (const wait of ways) {
      const [x, y] = [randomUUID(), randomUUID()]
      const both = gate()
      const ends = await Promise.allSettled([
        a.withLock(x, async () => {
          await both.opened
          return wait(a.withLock(y, () => 'done', LONG))
        }),
        b.withLock(y, async () => {
          both.open()
          return b.withLock(x, () => 'done', LONG)
        }),
      ])
      expect(ends.filter(({ status }) => status === 'rejected')).toHaveLength(1)
    }
  })
})

describe('a deadlock of two processes', () => {
  const source = `
    import { DistributedLock } from 'holdfast'
    const lock = new DistributedLock({ url: process.env.STORE, holderId: process.env.HOLDER })
    let goOn, ended
    expose({
      hold: (own) => new Promise((held) => {
        ended = lock.withLock(own, async () => {
          const other = await new Promise((resolve) => { goOn = resolve; held() })
          return lock.withLock(other, () => 'both', { blockingTimeoutSeconds: 60 })
        })
        ended.catch(() => {})
      }),
      cross: (other) => {
        goOn(other)
        return ended.catch(({ code, lockName, cycle }) => ({ code, lockName, cycle }))
      },
    })`

  it('ends for one of them with a DeadlockError, and the other goes on', { timeout: 60_000 }, async () => {
    const STORE = `sqlite:${join(folder.path, 'processes.db')}`
    await using a = await startWorker({ source }, { env: { STORE, HOLDER: 'a' } })
    await using b = await startWorker({ source }, { env: { STORE, HOLDER: 'b' } })
    await Promise.all([a.call('hold', 'x'), b.call('hold', 'y')])
    const ends = await Promise.all([a.call('cross', 'y'), b.call('cross', 'x')])
    expect(ends).toContain('both')
    const steps = [
      { holderId: 'a', lockName: 'y', heldBy: 'b' },
      { holderId: 'b', lockName: 'x', heldBy: 'a' },
    ]
    const [error] = ends.filter((end) => end !== 'both') as { lockName: string }[]
    const cycle = error?.lockName === 'y' ? steps : steps.toReversed()
    expect(error).toEqual({ code: 'DEADLOCK', lockName: cycle[0]?.lockName, cycle })
  })
})

/** Each holds one lock and waits for the other's. Resolves with the error of the one that gave up. */
async function deadlock(a: DistributedLock, x: string, b: DistributedLock, y: string) {
  const [aHolds, bHolds] = [gate(), gate()]
  let beganMs = 0
  const cross = async (
    lock: DistributedLock,
    own: string,
    other: string,
    holds: ReturnType<typeof gate>,
    both: Promise<unknown>,
  ) =>
    lock.withLock(own, async () => {
      holds.open()
      await both
      beganMs = performance.now()
      return lock.withLock(other, () => performance.now(), LONG)
    })
  const both = Promise.all([aHolds.opened, bHolds.opened])
  const ends = await Promise.allSettled([cross(a, x, y, aHolds, both), cross(b, y, x, bHolds, both)])
  const [failed] = ends.filter((end) => end.status === 'rejected')
  const [went] = ends.filter((end) => end.status === 'fulfilled')
  if (failed === undefined || went === undefined) throw new Error(`not one of each: ${JSON.stringify(ends)}`)
  return { error: failed.reason as DeadlockError, ms: went.value - beganMs }
}

/** A store, and how often it was inspected. */
function countingDriver() {
  const store = memoryDriver()
  let looks = 0
  const driver = {
    ...store,
    inspect(query: Parameters<typeof store.inspect>[0]) {
      // A check begins with the awaited lock, and goes on with the notes of its holders.
      if (query.lockName?.startsWith('waits:') !== true) looks += 1
      return store.inspect(query)
    },
  }
  return { driver, looks: () => looks }
}

describe('which claims check for deadlocks', () => {
  async function counted(options: InstanceOptions = {}) {
    const { driver, looks } = countingDriver()
    return { lock: new DistributedLock({ driver, deadlockAfterSeconds: 0.05, ...options }), looks }
  }

  it('a claim that holds nothing never checks', async () => {
    const { lock, looks } = await counted()
    await lock.hold('x')
    await lock.acquire('x', { blockingTimeoutSeconds: 0.4 })
    expect(looks()).toBe(0)
    await lock.close()
  })

  it('a claim inside a callback does, and so does a claim under a lease', async () => {
    const { lock, looks } = await counted()
    await lock.hold('x')
    await lock.withLock('own', () => lock.acquire('x', { blockingTimeoutSeconds: 0.4 }))
    expect(looks()).toBe(1)
    const own = await lock.hold('own')
    await lock.acquire('x', { blockingTimeoutSeconds: 0.4, under: own })
    expect(looks()).toBe(2)
    await lock.close()
  })

  it.each([false, 0] as const)('deadlockAfterSeconds: %s switches it off', async (deadlockAfterSeconds) => {
    const { lock, looks } = await counted({ deadlockAfterSeconds })
    await lock.hold('x')
    await lock.withLock('own', () => lock.acquire('x', { blockingTimeoutSeconds: 0.4 }))
    expect(looks()).toBe(0)
    await lock.close()
  })

  it('a bad setting, and an `under` that is not a lease, are rejected', async () => {
    expect(() => new DistributedLock({ url: 'memory:', deadlockAfterSeconds: -1 })).toThrow(InvalidArgumentError)
    const { lock } = await counted()
    await expect(lock.acquire('x', { under: {} as Lease })).rejects.toThrow(/under must be a lease/)
    await lock.close()
  })
})

it('unrelated requests to a server that was started inside a lock are not a deadlock', async () => {
  const { driver, looks } = countingDriver()
  await using lock = new DistributedLock({ driver, deadlockAfterSeconds: 0.05 })
  const requests = ['1', '2', '3']
  let done = 0
  const ends = await lock.withLock('singleton', async () => {
    const server = createServer(async (request, response) => {
      const own = `tenant${request.url}`
      const work = lock.withLock(own, () =>
        lock.withLock(
          'report',
          async () => {
            // The first is slow enough for the waiters to check twice.
            for (let turns = 0; done === 0 && looks() < 6 && turns < 100; turns += 1) await sleep(10)
            done += 1
            return 'done'
          },
          LONG,
        ),
      )
      response.end(await work.catch((error: Error) => error.message))
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    try {
      return await Promise.all(requests.map(async (each) => (await fetch(`http://127.0.0.1:${port}/${each}`)).text()))
    } finally {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    }
  })
  expect(ends).toEqual(requests.map(() => 'done'))
})

describe('deadlocks of other shapes', () => {
  const soon = { deadlockAfterSeconds: 0.05 }

  it('linear code that passes `under`', async () => {
    await using lock = new DistributedLock({ driver: memoryDriver(), ...soon })
    const [x, y] = [await lock.hold('x'), await lock.hold('y')]
    const claims = [
      lock.hold('y', { ...LONG, under: x }).finally(() => x.release()),
      lock.hold('x', { ...LONG, under: y }).finally(() => y.release()),
    ]
    const ends = await Promise.allSettled(claims)
    expect(ends.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
  })

  it('across instances, different primitives and re-entered leases', async () => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver, ...soon })
    await using pages = new ReadWriteLock({ driver, ...soon })
    await using workers = new Semaphore({ driver, limit: 2, ...soon })
    const [readerIn, permitsOut] = [gate(), gate()]
    const writer = workers.withPermits(
      'workers',
      async () => {
        permitsOut.open()
        await readerIn.opened
        return pages.withWrite('page', () => 'written', LONG)
      },
      { permits: 2 },
    )
    const reader = pages.withRead('page', () =>
      pages.withRead('page', async () => {
        readerIn.open()
        await permitsOut.opened
        return lock.withLock('more', () => workers.withPermits('workers', () => 'worked', LONG))
      }),
    )
    const ends = await Promise.allSettled([writer, reader])
    const [error] = ends.flatMap((end) => (end.status === 'rejected' ? [end.reason as unknown] : []))
    if (!(error instanceof DeadlockError)) throw error
    expect(error.cycle.map(({ lockName }) => lockName).sort()).toEqual(['page', 'workers'])
    expect(ends.filter((end) => end.status === 'fulfilled')).toHaveLength(1)
  })

  it('a task that outlives its callback is no longer in its chain', async () => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    const over = gate()
    let late: Promise<Lease> | undefined
    await lock.withLock('own', () => {
      late = over.opened.then(() => lock.hold('x'))
    })
    over.open()
    await late
    const { leases } = await driver.inspect({ lockName: 'x' })
    expect(leases[0]?.claimId.split('.')).toHaveLength(2)
  })

  it.each([
    ['inside its callback', () => ({})],
    ['under it', (under: Lease) => ({ under })],
  ])('a lock that was given back and is kept for minHoldSeconds is in no circle: a claim %s', async (_, options) => {
    const driver = memoryDriver()
    await using one = new DistributedLock({ driver, ...soon })
    await using two = new DistributedLock({ driver, ...soon })
    const [held, released] = [gate(), gate()]
    const ends = await Promise.all([
      one.withLock(
        'a',
        async (lease) => {
          await held.opened
          await lease.release()
          released.open()
          return one.withLock('b', () => 'one', { ...LONG, ...options(lease) })
        },
        { minHoldSeconds: 1 },
      ),
      two.withLock('b', async () => {
        held.open()
        await released.opened
        return two.withLock('a', () => 'two', LONG)
      }),
    ])
    expect(ends).toEqual(['one', 'two'])
  })

  it('a claim’s id names every lease around it, and none beside it', async () => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver })
    await using other = new DistributedLock({ driver })
    const idOf = async (lockName: string) => (await driver.inspect({ lockName })).leases[0]?.claimId ?? ''
    await lock.withLock('a', () =>
      other.withLock('b', () =>
        // Entered again, so it is inside `b` too.
        lock.withLock('a', () =>
          lock.withLocks(['c', 'd'], async () => {
            await Promise.all([other.hold('e'), other.hold('f')])
            const [a, b, c, d, e, f] = await Promise.all(['a', 'b', 'c', 'd', 'e', 'f'].map(idOf))
            expect(b?.startsWith(`${a}.`)).toBe(true)
            const together = c?.slice(0, c.indexOf('+')) ?? ''
            expect(together.startsWith(`${b}.`)).toBe(true)
            expect(d?.startsWith(`${together}+`)).toBe(true)
            for (const id of [e, f]) {
              expect(id?.startsWith(`${together}.`)).toBe(true)
              expect(id?.split('.')).toHaveLength(5)
            }
          }),
        ),
      ),
    )
  })

  it('locks nested deeper than eight levels have ids of bounded length and report no false deadlock', async () => {
    const driver = memoryDriver()
    await using lock = new DistributedLock({ driver, ...soon })
    const nest = (depth: number): Promise<unknown> =>
      lock.withLock(`depth ${depth}`, async () =>
        depth < 12 ? nest(depth + 1) : Promise.all([1, 2].map(() => lock.withLock('job', () => sleep(400), LONG))),
      )
    await nest(1)
    let longest = 0
    await using spied = new DistributedLock({
      driver: {
        ...driver,
        acquire: (claims, call) => {
          for (const { claimId } of claims) longest = Math.max(longest, claimId.length)
          return driver.acquire(claims, call)
        },
      },
    })
    const deep = (depth: number): Promise<unknown> =>
      spied.withLock(`deep ${depth}`, async () => (depth < 40 ? deep(depth + 1) : undefined))
    await deep(1)
    expect(longest).toBeLessThan(180)
  })
})

it('a check that fails unexpectedly is a warning, and the wait goes on', async () => {
  const driver = memoryDriver()
  // The store client reads a page once, when it checks it. What fails after that is not the store's fault.
  const pageOnce = (reads = 0): InspectPage => ({
    get leases() {
      reads += 1
      if (reads > 1) throw new TypeError('unexpected')
      return []
    },
    waiters: [],
  })
  const broken = { ...driver, inspect: async () => pageOnce() }
  await using lock = new DistributedLock({ driver: broken, deadlockAfterSeconds: 0.05 })
  // Instead of printing it.
  const warned = new Promise((resolve) => {
    vi.spyOn(process, 'emitWarning').mockImplementation(resolve)
  })
  const x = await lock.hold('x')
  const waiting = lock.withLock('own', () => lock.withLock('x', () => 'got it', LONG))
  expect(await warned).toBeInstanceOf(TypeError)
  vi.restoreAllMocks()
  await x.release()
  expect(await waiting).toBe('got it')
})

it('a store that does not answer is not asked about deadlocks, and the wait goes on', async () => {
  const driver = await connect(`memory:${randomUUID()}`)
  const broken = { ...driver, inspect: () => Promise.reject(new Error('no inspection today')) }
  await using lock = new DistributedLock({ driver: broken, deadlockAfterSeconds: 0.05 })
  const x = await lock.hold('x')
  const waiting = lock.withLock('own', () => lock.withLock('x', () => 'got it', LONG))
  setTimeout(() => void x.release(), 400)
  expect(await waiting).toBe('got it')
})
