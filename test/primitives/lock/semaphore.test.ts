import { describe, expect, inject, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { InvalidArgumentError, Semaphore, type SemaphoreOptions } from '../../../src/index.ts'
import type { PermitOptions } from '../../../src/primitives/lock/claims.ts'

describe('a semaphore’s own arguments', () => {
  const sent: unknown[] = []
  const driver = memoryDriver()
  const watched: Driver = {
    ...driver,
    acquire(claims, call) {
      sent.push(...claims)
      return driver.acquire(claims, call)
    },
  }

  it.each([0, -1, 1.5, Number.NaN, 1_000_001, '3', undefined])('limit %s is rejected', (limit) => {
    expect(() => new Semaphore({ driver, limit } as SemaphoreOptions)).toThrow(/limit must be a whole number from 1 to/)
  })

  it.each([0, 4, 1.5, '1', null])(
    'rule 13: permits %s of a limit of 3 are refused before anything is sent',
    async (permits) => {
      await using semaphore = new Semaphore({ driver: watched, limit: 3 })
      const options = { permits } as PermitOptions
      const attempts = [
        semaphore.acquire('a', options),
        semaphore.hold('a', options),
        semaphore.withPermits('a', () => {}, options),
      ]
      for (const attempt of attempts) {
        await expect(attempt).rejects.toThrow(/permits must be a whole number from 1 to 3/)
        await expect(attempt).rejects.toBeInstanceOf(InvalidArgumentError)
      }
      expect(sent).toEqual([])
    },
  )

  it('options that are not an object are rejected', async () => {
    await using semaphore = new Semaphore({ driver, limit: 3 })
    await expect(semaphore.acquire('a', null as unknown as PermitOptions)).rejects.toThrow(/options must be an object/)
  })
})

describe('a limit that changes while instances run', () => {
  it('each claim is subject to its own limit', async () => {
    const driver = memoryDriver()
    await using before = new Semaphore({ driver, limit: 2 })
    await using after = new Semaphore({ driver, limit: 3 })
    await before.hold('name')
    await before.hold('name')
    expect((await before.acquire('name', { blocking: false })).acquired).toBe(false)
    const third = await after.hold('name', { blocking: false })
    expect((await after.acquire('name', { blocking: false })).acquired).toBe(false)
    await third.release()
  })
})

describe('a driver without limits rejects semaphores with the reason', () => {
  it('redlock', async () => {
    const hosts = (inject('servers').redis ?? []).slice(0, 3).map((url) => new URL(url).host)
    await using semaphore = new Semaphore({ url: `redlock://${hosts.join(',')}`, limit: 2 })
    const attempt = semaphore.acquire('name')
    await expect(attempt).rejects.toMatchObject({ code: 'UNSUPPORTED' })
    await expect(attempt).rejects.toThrow(
      /the redlock driver does not support limits.*majorities do not preserve a count/,
    )
  })

  it('postgres-advisory', async () => {
    const url = inject('servers').postgres?.replace(/^postgres(ql)?:/, 'postgres+advisory:') ?? ''
    await using semaphore = new Semaphore({ url, limit: 2 })
    const attempt = semaphore.acquire('name')
    await expect(attempt).rejects.toMatchObject({ code: 'UNSUPPORTED' })
    await expect(attempt).rejects.toThrow(
      /the postgres-advisory driver does not support limits.*the server does not count/,
    )
  })
})
