import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { DistributedLock } from '../../../src/index.ts'
import { setUp } from './helper.ts'

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

it('rule 13: claims that have ended are collected while others wait', async () => {
  const { time, other, driver, settings, calls } = setUp({ now: undefined })
  const seen = new Set<string>()
  const claims: WeakRef<object>[] = []
  const watching: Driver = {
    ...driver,
    acquire: (requests, call) => {
      for (const claim of requests) {
        if (seen.has(claim.claimId)) continue
        seen.add(claim.claimId)
        claims.push(new WeakRef(claim))
      }
      return driver.acquire(requests, call)
    },
  }
  const lock = new DistributedLock({ ...settings, driver: watching })
  await other.acquire('name', { timeoutSeconds: 100_000 })
  const alive = async (): Promise<number> => {
    for (let tries = 0; tries < 3; tries += 1) {
      await new Promise((resolve) => setTimeout(resolve, 20))
      collectGarbage()
    }
    return claims.filter((each) => each.deref() !== undefined).length
  }
  const counts: number[] = []
  for (let round = 0; round < 3; round += 1) {
    // About 28 claims wait at any time. They give up in another order than they came.
    for (let at = 0; at < 1_000; at += 1) {
      void lock.acquire('name', { blockingTimeoutSeconds: 4 + ((at * 7) % 20) })
      await time.run(500)
    }
    calls.length = 0
    counts.push(await alive())
  }
  expect({ asked: claims.length, counts }).toEqual({
    asked: 3_000,
    counts: [expect.any(Number), expect.any(Number), expect.any(Number)],
  })
  expect(Math.max(...counts), counts.join()).toBeLessThan(200)
}, 60_000)
