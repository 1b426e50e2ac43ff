import { expect, inject, it } from 'vitest'
import { DistributedLock } from '../../../src/index.ts'

const [url = ''] = inject('servers').redis ?? []
const name = (): string => `blocked-loop-${Math.random()}`
const block = (ms: number): void => {
  const untilMs = performance.now() + ms
  while (performance.now() < untilMs);
}

it('failure 80: withLocks of free names in a blocked event loop', async () => {
  await using lock = new DistributedLock({ url })
  await lock.ping()
  const call = lock.withLocks([name(), name()], () => 'ran', { blockingTimeoutSeconds: 0.3 })
  setImmediate(() => block(800))
  expect(await call.catch(String)).toBe('ran')
})

it('failure 80: a re-acquisition in a blocked event loop', async () => {
  await using lock = new DistributedLock({ url, reacquire: 'extend' })
  const lockName = name()
  await lock.acquire(lockName)
  const call = lock.acquire(lockName, { blockingTimeoutSeconds: 0.3, timeoutSeconds: 60 })
  setImmediate(() => block(800))
  expect(await call.then(({ acquired }) => acquired, String)).toBe(true)
})
