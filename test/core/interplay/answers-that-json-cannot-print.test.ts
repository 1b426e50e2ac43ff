import { expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'
import { watched } from './helper.ts'

const unhandled: unknown[] = []
process.on('unhandledRejection', (error) => unhandled.push(error))
const tick = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

it('a token that is a BigInt is an invalid answer, and costs the other claims nothing', async () => {
  const inner = memoryDriver({ store: createMemoryStore() })
  const acquire: Driver['acquire'] = async (claims, call) =>
    (await inner.acquire(claims, call)).map((answer, at) =>
      at === 0 ? ({ ...answer, fencingToken: 5n } as never) : answer,
    )
  const lock = new DistributedLock({ driver: { ...inner, acquire } })
  const [a, b] = [watched(lock.acquire('a')), watched(lock.acquire('b'))]
  await tick(100)
  expect(unhandled.map(String)).toEqual([])
  expect(a.error).toMatchObject({ code: 'STORE_UNAVAILABLE' })
  expect(b.state).toBe('resolved')
})

it('a driver whose partOf throws fails the call', async () => {
  const uncaught: unknown[] = []
  const listeners = process.listeners('uncaughtException')
  process.removeAllListeners('uncaughtException')
  process.on('uncaughtException', (error) => uncaught.push(error))
  const inner = memoryDriver({ store: createMemoryStore() })
  const partOf = () => {
    throw new Error('no map of the cluster')
  }
  const lock = new DistributedLock({ driver: { ...inner, extensions: { ...inner.extensions, partOf } } })
  const [a, b] = [watched(lock.acquire('a')), watched(lock.acquire('b'))]
  await tick(100)
  process.removeAllListeners('uncaughtException')
  for (const listener of listeners) process.on('uncaughtException', listener)
  expect(uncaught.map(String)).toEqual([])
  expect([a.state, b.state]).toEqual(['rejected', 'rejected'])
})
