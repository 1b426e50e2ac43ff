import { join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { connect, DistributedLock, UnsupportedError } from '../../../src/index.ts'
import { VirtualTime } from '../../../src/testing/index.ts'
import { makeFolder } from '../../harness/folders.ts'

/**
 * An application's tests replace the timers and clocks of the process (`vi.useFakeTimers()`, Jest, Sinon), and time
 * stands still then. Holdfast goes by those that were there when it was loaded.
 */

const folder = makeFolder('fake-timers')
afterAll(() => folder.remove())

const everyFake = [
  'setTimeout',
  'clearTimeout',
  'setInterval',
  'clearInterval',
  'setImmediate',
  'clearImmediate',
  'Date',
  'performance',
  'hrtime',
  'queueMicrotask',
] as const

/** Those that are faked unless others are named; every one that vitest can replace; only some. */
describe.each([
  ['as vitest does it', undefined],
  ['all of them', [...everyFake]],
  ['timers only', ['setTimeout', 'clearTimeout'] as const],
])('with fake timers: %s', (_, toFake) => {
  beforeEach(() => void vi.useFakeTimers(toFake && { toFake: [...toFake] }))
  afterEach(() => void vi.useRealTimers())

  it.each([
    ['memory', 'memory:'],
    ['sqlite', `sqlite:${join(folder.path, 'locks.db')}`],
  ])('a claim that waits on %s is granted after the release, and asks only a few times until then', async (_, url) => {
    const { driver, asked } = counting(await connect(url))
    const holder = new DistributedLock({ driver })
    const waiter = new DistributedLock({ driver })
    const lease = await holder.hold('name')
    const waiting = waiter.hold('name', { blocking: true })
    await waits(driver)
    // Many turns of the event loop: a claim that spins asks in each of them.
    for (let turn = 0; turn < 500; turn += 1) await realTurn()
    const askedBefore = asked()
    expect(await lease.release()).toBe(true)
    expect(await (await waiting).release()).toBe(true)
    expect(askedBefore).toBeLessThan(20)
    await Promise.all([holder.close(), waiter.close()])
    await driver.close()
  })

  it('a waiting time ends, and a lease runs out, although time stands still for the application', async () => {
    const driver = await connect('memory:')
    const lock = new DistributedLock({ driver })
    const lost = new Promise((resolve) => lock.on('lost', resolve))
    await lock.hold('name', { timeoutSeconds: 0.3, heartbeat: false })
    const other = await lock.acquire('other')
    expect(await lock.acquire('other', { blockingTimeoutSeconds: 0.05 })).toMatchObject({ acquired: false })
    await lost
    expect(other.acquired && (await other.lock.release())).toBe(true)
    await lock.close()
    await driver.close()
  })
})

describe('a clock that stands still', () => {
  it('lets a claim that waits ask only a few times', async () => {
    const time = new VirtualTime()
    const clock = time.clock()
    const { driver, asked } = counting(memoryDriver({ store: createMemoryStore(clock) }))
    const lock = new DistributedLock({ driver, clock })
    const lease = await lock.hold('name')
    const waiting = lock.hold('name', { blocking: true })
    await waits(driver)
    for (let turn = 0; turn < 500; turn += 1) await realTurn()
    const askedBefore = asked()
    await lease.release()
    expect(await (await waiting).release()).toBe(true)
    expect(askedBefore).toBeLessThan(20)
    await lock.close()
  })
})

/** A claim that spins in microtasks would keep the test from ever failing. */
const MAX_ASKS = 10_000

function counting(inner: Driver): { driver: Driver; asked: () => number } {
  let asked = 0
  const acquire: Driver['acquire'] = (claims) => {
    asked += 1
    if (asked > MAX_ASKS) throw new UnsupportedError('the claim spins')
    return inner.acquire(claims)
  }
  return { driver: { ...inner, acquire }, asked: () => asked }
}

async function waits(driver: Driver): Promise<void> {
  while ((await driver.inspect({})).waiters.length === 0) await realTurn()
}

const { setImmediate: realImmediate } = globalThis
const realTurn = (): Promise<void> => new Promise((resolve) => void realImmediate(resolve))
