import assert from 'node:assert/strict'
import { describe, it } from 'vitest'
import type { Claim } from '../../../src/core/driver.ts'
import { systemClock } from '../../../src/core/time/clock.ts'
import { createMemoryStore, type MemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'

const FEW = 250
const MANY = 5_000
/** If every step looked at each of the claims, it would be 20. */
const MAX_GROWTH = 7
const MAX_ATTEMPTS = 5

describe('rule 10: a step of the memory store does not take longer with more claims on the name', () => {
  grows('joining the queue', ({ claim, acquire }, count) => {
    acquire(claim('holder'))
    return () => times(count, (index) => acquire(waiter(claim(index))))
  })

  grows('asking again, first come first', (scene, count) => {
    const waiters = queue(scene, count)
    return () => waiters.forEach(scene.acquire)
  })

  grows('asking again, last come first', (scene, count) => {
    const waiters = queue(scene, count).reverse()
    return () => waiters.forEach(scene.acquire)
  })

  grows('a hand-off', (scene, count) => {
    const waiters = queue(scene, count)
    return () => {
      let last = scene.claim('holder')
      for (const each of waiters) {
        scene.store.release(last)
        assert.ok(scene.acquire(each).granted)
        last = each
      }
    }
  })

  for (const [order, orderOf] of [
    ['the first one first', (at: number) => at],
    ['the last one first', (at: number, count: number) => count - 1 - at],
    ['in no order', (at: number, count: number) => (at * 7_919) % count],
  ] as const) {
    grows(`giving up, ${order}`, (scene, count) => {
      const waiters = queue(scene, count)
      return () => times(count, (at) => scene.store.release(waiters[orderOf(at, count)] as Claim))
    })
  }

  grows('passing over waiters that have died', (scene, count) => {
    queue(scene, count, 1_000)
    scene.passes(500)
    const alive = waiter(scene.claim('alive'))
    scene.acquire(alive)
    scene.passes(600)
    return () => {
      scene.store.release(scene.claim('holder'))
      assert.ok(scene.acquire(alive).granted)
      return count
    }
  })

  grows('waiters that die one after the other', (scene, count) => {
    const { acquire, claim, passes } = scene
    acquire(claim('holder'))
    times(count, (index) => {
      acquire(waiter(claim(index), 30_000))
      passes(1)
    })
    return () =>
      times(count, () => {
        passes(1)
        acquire(claim('skips'))
      })
  })

  grows('a reader after a writer', (scene, count) => {
    const readers = queue(scene, count, 60_000, { mode: 'shared' })
    return () => {
      scene.store.release(scene.claim('holder'))
      for (const reader of readers) assert.ok(scene.acquire(reader).granted)
    }
  })

  grows('a forced claim', (scene, count) => {
    queue(scene, count)
    return () =>
      times(FEW, (index) =>
        assert.ok(scene.acquire({ ...scene.claim(`by force ${index}`), forceUpTo: Number.MAX_SAFE_INTEGER })),
      )
  })

  grows('a claim in a group', (scene, count) => {
    queue(scene, count)
    const group = (index: number) =>
      ['free', 'name'].map((lockName) => ({ ...scene.claim(`member ${index}`), lockName, group: 'group' }))
    return () => times(FEW, (index) => scene.store.acquireGroup(group(index)))
  })

  grows('a pair on another name', (scene, count) => {
    queue(scene, count)
    return () => times(FEW, (index) => pair(scene, { ...scene.claim(index), lockName: 'other' }))
  })

  grows('listing a name, in pages', ({ acquire, claim, store }, count) => {
    times(count, (index) => acquire({ ...claim(index), lockName: `name ${(index * 7_919) % count}` }))
    return () => {
      let listed = 0
      let after: string | undefined
      do {
        const page = store.inspect({ pageSize: 10, ...(after !== undefined && { after }) })
        listed += page.leases.length
        after = page.next
      } while (after !== undefined)
      assert.equal(listed, count)
    }
  })

  const permit = { mode: 'shared', limit: Number.MAX_SAFE_INTEGER } as const

  grows('a permit of a semaphore', ({ acquire, claim }, count) => {
    return () => times(count, (index) => assert.ok(acquire({ ...claim(index), ...permit }).granted))
  })

  grows('renewing and releasing a permit of a semaphore', ({ acquire, claim, store, passes }, count) => {
    const tokens: number[] = []
    times(count, (index) => {
      const answer = acquire({ ...claim(index), ...permit })
      if (answer.granted) tokens.push(answer.fencingToken)
      passes(0.5)
    })
    passes(20_000)
    return () =>
      times(count, (index) => {
        const lease = { ...claim(index), fencingToken: tokens[index] as number }
        assert.equal(store.renew({ ...lease, ttlMs: 60_000 }), 'renewed')
        passes(0.5)
        assert.equal(store.release(lease), true)
      })
  })

  grows('handing on the permits of a semaphore', ({ acquire, claim, store }, count) => {
    const full = { mode: 'shared', limit: count } as const
    times(count, (index) => acquire({ ...claim(index), ...full }))
    times(count, (index) => acquire({ ...waiter(claim(count + index)), ...full }))
    return () =>
      times(count, (index) => {
        store.release(claim(index))
        assert.ok(acquire({ ...waiter(claim(count + index)), ...full }).granted)
      })
  })
})

describe('20,000 waiters on one name', () => {
  it('are served one after the other, and a lease of another name is renewed meanwhile', async () => {
    await using lock = new DistributedLock({ driver: memoryDriver() })
    await using other = await lock.hold('other', { timeoutSeconds: 5 })
    const holder = await lock.hold('name')
    let served = 0
    const waiters = Array.from({ length: 20_000 }, async () => {
      await using _lease = await lock.hold('name', { blockingTimeoutSeconds: 60 })
      served += 1
    })
    await holder.release()
    await Promise.all(waiters)
    assert.equal(served, waiters.length)
    assert.equal(other.held, true)
  })
}, 60_000)

interface Scene {
  readonly store: MemoryStore
  readonly acquire: MemoryStore['acquire']
  /** Claims on one name. With the same argument, it is the same claim. */
  claim(id: number | string): Claim
  passes(ms: number): void
}

/** `prepare` returns what is measured, and that returns how many steps it made: by default, one for each claim. */
function grows(step: string, prepare: (scene: Scene, count: number) => () => unknown): void {
  it(step, () => {
    const costOf = (count: number): number => {
      const run = prepare(createScene(), count)
      const before = process.cpuUsage()
      const steps = run()
      const { user, system } = process.cpuUsage(before)
      return (user + system) / (typeof steps === 'number' ? steps : count)
    }
    // The first round also compiles. A machine that is busy may disturb any round, so the fastest one counts.
    let [few, many] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]
    for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt += 1) {
      for (let round = 0; round < 5; round += 1) few = Math.min(few, costOf(FEW))
      many = Math.min(many, costOf(MANY))
      if (attempt > 1 && many <= few * MAX_GROWTH) return
    }
    assert.fail(`${many.toFixed(2)} µs with ${MANY} claims, ${few.toFixed(2)} µs with ${FEW}`)
  })
}

function createScene(): Scene {
  let wallMs = Date.now()
  const store = createMemoryStore({
    ...systemClock,
    now: () => ({ monotonicMs: wallMs, wallMs }),
    setTimer: () => ({ cancel() {} }),
  })
  return {
    store,
    acquire: store.acquire,
    claim: (id) => ({
      lockName: 'name',
      claimId: `claim ${id}`,
      holderId: 'test',
      mode: 'exclusive',
      permits: 1,
      ttlMs: 60_000,
      waiterTtlMs: 0,
    }),
    passes(ms) {
      wallMs += ms
    },
  }
}

const waiter = (claim: Claim, waiterTtlMs = 60_000): Claim => ({ ...claim, waiterTtlMs })

/** A lock that is held, with so many waiters. */
function queue({ claim, acquire }: Scene, count: number, waitMs?: number, terms: Partial<Claim> = {}): Claim[] {
  acquire(claim('holder'))
  const waiters = Array.from({ length: count }, (_, index) => ({ ...waiter(claim(index), waitMs), ...terms }))
  for (const each of waiters) acquire(each)
  return waiters
}

function pair({ acquire, store }: Scene, claim: Claim): void {
  assert.ok(acquire(claim).granted)
  store.release(claim)
}

function times(count: number, run: (index: number) => unknown): number {
  for (let index = 0; index < count; index += 1) run(index)
  return count
}
