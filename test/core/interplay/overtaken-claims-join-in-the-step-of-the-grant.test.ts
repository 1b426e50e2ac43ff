import { expect, it } from 'vitest'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'
import { setUp } from './helper.ts'

it('rule 10: what a hand-off to waiting re-acquisitions costs does not grow with their number', async () => {
  const requests = async (waiters: number): Promise<number> => {
    const { time, lock, other, calls } = setUp({ now: () => ({ requestMs: 1, replyMs: 1 }) }, { reacquire: 'extend' })
    const taken = await other.acquire('name', { timeoutSeconds: 1_000 })
    const job = () => new Promise<void>((resolve) => void time.in(1, resolve))
    const all = Array.from({ length: waiters }, () => lock.withLock('name', job, { blockingTimeoutSeconds: 900 }))
    await time.run(100)
    const before = calls.reduce((sum, call) => sum + call.requests.length, 0)
    if (taken.acquired) void taken.lock.release()
    await time.run(10_000)
    await Promise.all(all)
    return (calls.reduce((sum, call) => sum + call.requests.length, 0) - before) / waiters
  }
  const [few, many] = [await requests(20), await requests(160)]
  expect(many).toBeLessThan(few * 2)
})

it('rule 10: waiting re-acquisitions keep their place', async () => {
  const { time, lock, other, settings, store } = setUp(
    { now: () => ({ requestMs: 1, replyMs: 1 }) },
    { reacquire: 'extend' },
  )
  const third = new DistributedLock({ ...settings, driver: memoryDriver({ store }) })
  const taken = await other.acquire('name', { timeoutSeconds: 1_000 })
  const order: string[] = []
  for (const [on, who] of [
    [lock, 'a1'],
    [lock, 'a2'],
    [lock, 'a3'],
    [third, 'b1'],
    [third, 'b2'],
  ] as const) {
    void on.withLock('name', () => void order.push(who), { blockingTimeoutSeconds: 100 })
    await time.run(20)
  }
  if (taken.acquired) void taken.lock.release()
  await time.run(3_000)
  expect(order.slice(0, 3).toSorted()).toEqual(['a1', 'a2', 'a3'])
})
