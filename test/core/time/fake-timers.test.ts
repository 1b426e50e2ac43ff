import { join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { connect, DistributedLock, UnsupportedError } from '../../../src/index.ts'
import { VirtualTime } from '../../../src/testing/index.ts'
import { makeFolder } from '../../harness/folders.ts'

/**
 * Tests of an application replace the timers and clocks of the process (`vi.useFakeTimers()`, Jest, Sinon). Time does
 * not advance then. Holdfast uses the timers and clocks that existed when it was loaded.
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

/** What vitest replaces by default, everything that it can replace, and only a part. */
describe.each([
  ['the default of vitest', undefined],
  ['all of them', [...everyFake]],
  ['timers only', ['setTimeout', 'clearTimeout'] as const],
])('with fake timers: %s', (_, toFake) => {
  beforeEach(() => void vi.useFakeTimers(toFake && { toFake: [...toFake] }))
  afterEach(() => void vi.useRealTimers())

  it.each([
    ['memory', 'memory:'],
    ['sqlite', `sqlite:${join(folder.path, 'locks.db')}`],
  ])('a waiting claim on %s is granted after the release, and sends only a few requests until then', async (_, url) => {
    const { driver, requests } = counting(await connect(url))
    const holder = new DistributedLock({ driver })
    const waiter = new DistributedLock({ driver })
    const lease = await holder.hold('name')
    const waiting = waiter.hold('name', { blocking: true })
    await untilQueued(driver)
    // Many turns of the event loop: a claim that spins sends a request in each of them.
    for (let turn = 0; turn < 500; turn += 1) await realTurn()
    const requestsBefore = requests()
    expect(await lease.release()).toBe(true)
    expect(await (await waiting).release()).toBe(true)
    expect(requestsBefore).toBeLessThan(20)
    await Promise.all([holder.close(), waiter.close()])
    await driver.close()
  })

  it('a waiting time ends, and a lease expires, although time does not advance for the application', async () => {
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

describe('a clock that does not advance', () => {
  it('lets a waiting claim send only a few requests', async () => {
    const time = new VirtualTime()
    const clock = time.clock()
    const { driver, requests } = counting(memoryDriver({ store: createMemoryStore(clock) }))
    const lock = new DistributedLock({ driver, clock })
    const lease = await lock.hold('name')
    const waiting = lock.hold('name', { blocking: true })
    await untilQueued(driver)
    for (let turn = 0; turn < 500; turn += 1) await realTurn()
    const requestsBefore = requests()
    await lease.release()
    expect(await (await waiting).release()).toBe(true)
    expect(requestsBefore).toBeLessThan(20)
    await lock.close()
  })
})

/** Without this bound, a claim that spins in microtasks would hang the test. */
const MAX_REQUESTS = 10_000

function counting(inner: Driver): { driver: Driver; requests: () => number } {
  let requests = 0
  const acquire: Driver['acquire'] = (claims, call) => {
    requests += 1
    if (requests > MAX_REQUESTS) throw new UnsupportedError('the claim spins')
    return inner.acquire(claims, call)
  }
  return { driver: { ...inner, acquire }, requests: () => requests }
}

async function untilQueued(driver: Driver): Promise<void> {
  while ((await driver.inspect({})).waiters.length === 0) await realTurn()
}

const { setImmediate: realImmediate } = globalThis
const realTurn = (): Promise<void> => new Promise((resolve) => void realImmediate(resolve))
