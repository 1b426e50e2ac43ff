import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { systemClock } from '../../../src/core/time/clock.ts'
import {
  capabilities,
  createMemoryStore,
  type MemoryStore,
  memoryDriver,
  openMemory,
} from '../../../src/drivers/memory.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { type ConformanceStore, driverConformance } from '../../../src/testing/index.ts'

driverConformance({
  runner: { describe: describe.concurrent, it: it.concurrent, beforeAll, afterAll },
  name: 'memory',
  capabilities,
  open: openStore,
  breakable: {
    open: openStore,
    async loseData(store) {
      // No process restarts within the millisecond in which two stores would give the same token.
      await sleep(2)
      store.loseData()
    },
    stepClock: async (store, ms) => store.stepClock(ms),
  },
})

describe('memory alone', () => {
  it('drivers without a common store do not exclude each other', async () => {
    const [a, b] = [memoryDriver(), memoryDriver()]
    for (const driver of [a, b]) assert.equal(await grants(driver), true)
  })

  it('drivers that this process opens with one URL are on one store', async () => {
    const [a, b, other] = [openMemory('memory:one'), openMemory('memory:one'), openMemory('memory:other')]
    assert.equal(await grants(a), true)
    assert.equal(await grants(b), false)
    assert.equal(await grants(other), true)
  })

  it('grants all of a group or nothing, even if one of its leases expires meanwhile', async () => {
    for (let leftMs = 1; leftMs <= 30; leftMs += 1) {
      let [wallMs, stepMs] = [Date.now(), 0]
      const now = () => {
        wallMs += stepMs
        return { monotonicMs: wallMs, wallMs }
      }
      const driver = memoryDriver({ store: createMemoryStore({ ...systemClock, now }) })
      const claimOn = (lockName: string, claimId: string) =>
        ({ lockName, claimId, holderId: 'test', mode: 'exclusive', permits: 1, ttlMs: 1_000, waiterTtlMs: 0 }) as const
      const group = ['a', 'b'].map((name) => ({ ...claimOn(name, `member ${name}`), group: 'group' }))
      // The answer to the group was lost, and one of its leases is about to end, with a waiter behind it.
      await driver.acquire(group.slice(0, 1), newCall())
      await driver.acquire([{ ...claimOn('a', 'waiter'), waiterTtlMs: 60_000 }], newCall())
      wallMs += 1_000 - leftMs
      stepMs = 1
      const answers = await driver.acquire(group, newCall())
      const granted = answers.map((answer) => 'granted' in answer && answer.granted)
      assert.ok(granted[0] === granted[1], `${leftMs} ms before its end: ${granted}`)
    }
  })
})

interface OpenMemoryStore extends ConformanceStore {
  loseData(): void
  stepClock(ms: number): void
}

async function openStore(): Promise<OpenMemoryStore> {
  let aheadMs = 0
  const clock = {
    ...systemClock,
    now() {
      const { monotonicMs, wallMs } = systemClock.now()
      return { monotonicMs, wallMs: wallMs + aheadMs }
    },
  }
  let current = createMemoryStore(clock)
  const { listeners } = current
  // Looks up the store at every call, so that open drivers continue with the empty one after the data was lost.
  const store: MemoryStore = {
    listeners,
    acquire: (claim) => current.acquire(claim),
    acquireGroup: (claims) => current.acquireGroup(claims),
    renew: (renewal) => current.renew(renewal),
    release: (lease) => current.release(lease),
    consume: (request) => current.consume(request),
    inspectRates: (query) => current.inspectRates(query),
    inspect: (query) => current.inspect(query),
  }
  return {
    driver: async () => memoryDriver({ store }),
    close: async () => {},
    loseData() {
      current = createMemoryStore(clock)
    },
    stepClock(ms) {
      aheadMs += ms
    },
  }
}

async function grants(driver: ReturnType<typeof memoryDriver>): Promise<boolean> {
  const claim = {
    lockName: 'memory',
    holderId: 'h',
    mode: 'exclusive',
    permits: 1,
    ttlMs: 60_000,
    waiterTtlMs: 0,
  } as const
  claims += 1
  const [answer] = await driver.acquire([{ ...claim, claimId: `${claims}` }], newCall())
  return answer !== undefined && 'granted' in answer && answer.granted
}

let claims = 0
