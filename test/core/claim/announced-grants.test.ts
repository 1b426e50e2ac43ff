import { describe, expect, it } from 'vitest'
import type { Driver, DriverListener } from '../../../src/core/driver.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'
import { mustGrant } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'

describe('rule 15: a grant that comes as a message', () => {
  it('counts with the proof of the newest request, is a hint with that of the one before, else nothing', async () => {
    const memory = memoryDriver()
    const secrets: string[] = []
    let listener: DriverListener | undefined
    const driver: Driver = {
      ...memory,
      acquire(claims, call) {
        secrets.push(call.secret)
        return memory.acquire(claims, call)
      },
      async listen(to) {
        listener = to
        return async () => {}
      },
    }
    const lockName = 'announced'
    const terms = { mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 } as const
    await mustGrant(memory, { lockName, claimId: 'the holder', holderId: 'h', ...terms })
    const lock = new DistributedLock({ driver, waiterTtlSeconds: 60 })
    const waiting = lock.hold(lockName, { blockingTimeoutSeconds: 30 })
    const waits = async (): Promise<string | undefined> => (await memory.inspect({ lockName })).waiters[0]?.claimId
    await until(async () => listener !== undefined && (await waits()) !== undefined, patience('the waiter'))
    const claimId = (await waits()) ?? ''
    const asked = async (send: () => void): Promise<void> => {
      const { length } = secrets
      send()
      await until(() => secrets.length > length, patience('another request'))
      await turn()
    }
    await turn()
    await asked(() => listener?.wake({ claimId }))
    const announce = (isProvedBy: (secret: string) => boolean): void =>
      listener?.granted(
        claimId,
        { granted: true, fencingToken: 7, ttlMs: 60_000, acquiredAtMs: Date.now() },
        isProvedBy,
      )

    const { length } = secrets
    announce(() => false)
    await turn()
    expect(secrets.length).toBe(length)
    const [before] = secrets.slice(-2)
    await asked(() => announce((secret) => secret === before))
    expect(new Set(secrets).size).toBe(secrets.length)
    const newest = secrets.at(-1)
    announce((secret) => secret === newest)
    expect((await waiting).fencingToken).toBe(7)
    expect(secrets.at(-1)).toBe(newest)
    await lock.close()
  })
})

/** Lets all answers arrive that are there. */
const turn = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 5))

const patience = (what: string) => ({ timeoutMs: 30_000, failure: () => `timed out waiting for ${what}` })
