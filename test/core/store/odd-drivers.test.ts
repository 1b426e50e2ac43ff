import { describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, StoreError } from '../../../src/index.ts'

/** The first call of a method answers with what no driver should answer with. */
function oddOnce(method: 'acquire' | 'renew' | 'release', answer: unknown): Driver {
  const inner = memoryDriver()
  let odd = true
  const call = (list: readonly never[]): Promise<never> => {
    if (!odd) return inner[method](list) as Promise<never>
    odd = false
    return Promise.resolve(answer as never)
  }
  return { ...inner, [method]: call }
}

const oddAnswers: [string, unknown][] = [
  ['an Error that is none of ours', [new Error('boom')]],
  ['too few', []],
  ['no list', undefined],
  ['an empty entry', [undefined]],
  ['a word that is none of its answers', ['yes']],
  ['an object that is none of its answers', [{}]],
]

describe.each(oddAnswers)('a driver that answers once with %s', (_, answer) => {
  it('does not lose a healthy lease by its renewal', async () => {
    const lock = new DistributedLock({ driver: oddOnce('renew', answer) })
    const lease = await lock.hold('name', { timeoutSeconds: 0.6 })
    await new Promise((resolve) => setTimeout(resolve, 900)) // longer than the time to live
    expect(lease.held).toBe(true)
    await lock.close()
  })

  it('does not end a wait, and an acquire that does not wait says that it is not known', async () => {
    const waiting = new DistributedLock({ driver: oddOnce('acquire', answer) })
    expect((await waiting.acquire('name', { blocking: true })).acquired).toBe(true)
    await waiting.close()
    const hasty = new DistributedLock({ driver: oddOnce('acquire', answer) })
    await expect(hasty.acquire('name', { blocking: false })).rejects.toBeInstanceOf(StoreError)
    await hasty.close()
  })

  it("does not hide a job's result or error by its release", async () => {
    const lock = new DistributedLock({ driver: oddOnce('release', answer) })
    expect(await lock.withLock('name', () => 'result')).toBe('result')
    await lock.close()
    const failing = new DistributedLock({ driver: oddOnce('release', answer) })
    const job = failing.withLock('name', () => Promise.reject(new Error('mine')))
    await expect(job).rejects.toThrow('mine')
    await failing.close()
  })
})

it('a late answer that is none, and a late subscription that cannot be stopped, are no unhandled rejections', async () => {
  const inner = memoryDriver()
  const driver: Driver = {
    ...inner,
    acquire: (claims) =>
      claims.some(({ lockName }) => lockName === 'late')
        ? new Promise((resolve) => setTimeout(resolve, 150, undefined as never))
        : inner.acquire(claims),
    listen: () => new Promise((resolve) => setTimeout(resolve, 150, () => Promise.reject(new Error('cannot stop')))),
  }
  const lock = new DistributedLock({ driver, callTimeoutSeconds: 0.1 })
  await expect(lock.acquire('late', { blocking: false })).rejects.toBeInstanceOf(StoreError)
  await lock.acquire('name')
  expect((await lock.acquire('name', { blockingTimeoutSeconds: 0.4 })).acquired).toBe(false)
  await new Promise((resolve) => setTimeout(resolve, 200)) // both late answers have come
  await lock.close()
})

it('minHoldSeconds is not undone by a renewal of the heartbeat that arrives late', async () => {
  const inner = memoryDriver()
  let delayMs = 150
  const driver: Driver = {
    ...inner,
    renew: async (renewals) => {
      const ms = delayMs
      delayMs = 0
      await new Promise((resolve) => setTimeout(resolve, ms))
      return inner.renew(renewals)
    },
  }
  const lock = new DistributedLock({ driver })
  const renewing = new Promise<void>((resolve) => {
    const before = driver.renew
    Object.assign(driver, {
      renew: (renewals: Parameters<Driver['renew']>[0]) => {
        resolve()
        return before(renewals)
      },
    })
  })
  const result = await lock.acquire('cron', { timeoutSeconds: 0.6, heartbeat: true, minHoldSeconds: 2 })
  await renewing
  if (!result.acquired) throw new Error('not acquired')
  expect(await result.lock.release()).toBe(true)
  const [record] = (await inner.inspect({})).leases
  expect((record?.expiresAtMs ?? 0) - (record?.acquiredAtMs ?? 0)).toBeGreaterThan(1_900)
  await lock.close()
})
