import { describe, expect, it } from 'vitest'
import type { AcquireCall, Driver } from '../../../src/core/driver.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, StoreError } from '../../../src/index.ts'

/** The first call of a method returns an invalid answer. */
function invalidOnce(method: 'acquire' | 'renew' | 'release', answer: unknown): Driver {
  const inner = memoryDriver()
  let isFirst = true
  const call = (list: readonly never[], sent: AcquireCall): Promise<never> => {
    if (!isFirst) return inner[method](list, sent) as Promise<never>
    isFirst = false
    return Promise.resolve(answer as never)
  }
  return { ...inner, [method]: call }
}

const invalidAnswers: [string, unknown][] = [
  ['an error of another library', [new Error('boom')]],
  ['too few answers', []],
  ['no array', undefined],
  ['an undefined entry', [undefined]],
  ['an unknown word', ['yes']],
  ['an unknown object', [{}]],
]

describe.each(invalidAnswers)('a driver that once returns %s', (_, answer) => {
  it('does not lose a valid lease because of a renewal', async () => {
    const lock = new DistributedLock({ driver: invalidOnce('renew', answer) })
    const lease = await lock.hold('name', { timeoutSeconds: 0.6 })
    await new Promise((resolve) => setTimeout(resolve, 900)) // longer than the TTL
    expect(lease.held).toBe(true)
    await lock.close()
  })

  it('does not end a waiting claim, and a claim that does not wait fails with a StoreError', async () => {
    const waiting = new DistributedLock({ driver: invalidOnce('acquire', answer) })
    expect((await waiting.acquire('name', { blocking: true })).acquired).toBe(true)
    await waiting.close()
    const impatient = new DistributedLock({ driver: invalidOnce('acquire', answer) })
    await expect(impatient.acquire('name', { blocking: false })).rejects.toBeInstanceOf(StoreError)
    await impatient.close()
  })

  it('does not hide the result or the error of a job because of a release', async () => {
    const lock = new DistributedLock({ driver: invalidOnce('release', answer) })
    expect(await lock.withLock('name', () => 'result')).toBe('result')
    await lock.close()
    const failing = new DistributedLock({ driver: invalidOnce('release', answer) })
    const job = failing.withLock('name', () => Promise.reject(new Error('mine')))
    await expect(job).rejects.toThrow('mine')
    await failing.close()
  })
})

it('a late invalid answer, and a late subscription that cannot be stopped, cause no unhandled rejection', async () => {
  const inner = memoryDriver()
  const driver: Driver = {
    ...inner,
    acquire: (claims, call) =>
      claims.some(({ lockName }) => lockName === 'late')
        ? new Promise((resolve) => setTimeout(resolve, 150, undefined as never))
        : inner.acquire(claims, call),
    listen: () => new Promise((resolve) => setTimeout(resolve, 150, () => Promise.reject(new Error('cannot stop')))),
  }
  const lock = new DistributedLock({ driver, callTimeoutSeconds: 0.1 })
  await expect(lock.acquire('late', { blocking: false })).rejects.toBeInstanceOf(StoreError)
  await lock.acquire('name')
  expect((await lock.acquire('name', { blockingTimeoutSeconds: 0.4 })).acquired).toBe(false)
  await new Promise((resolve) => setTimeout(resolve, 200)) // both late answers have arrived
  await lock.close()
})

it('a late renewal of the heartbeat does not shorten minHoldSeconds', async () => {
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
