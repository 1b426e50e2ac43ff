import { expect, it } from 'vitest'
import type { Lease } from '../../../src/index.ts'
import { gate, setUp, watched } from './helper.ts'

type Lock = ReturnType<typeof setUp>['lock']
const ends: [string, (lease: Lease, lock: Lock) => unknown][] = [
  ['lease.release()', (lease) => lease.release()],
  ['lock.release(name)', (_, lock) => lock.release('name')],
  ['lock.releaseAll()', (_, lock) => lock.releaseAll()],
]
const slow = { now: (method: string) => (method === 'release' ? { requestMs: 5, replyMs: 5 } : undefined) }

it.each(ends)('rule 16: withLock confirms its lease although its function does not await %s', async (_, end) => {
  const { time, lock, other } = setUp(slow)
  const go = gate()
  const call = watched(
    lock.withLock('name', async (lease) => {
      await go.opened
      void end(lease, lock)
    }),
  )
  await time.run(10)
  await other.forceRelease('name', { by: 'ada' })
  expect((await other.acquire('name')).acquired).toBe(true)
  go.open()
  await time.run(100)
  expect(call.state).toBe('rejected')
  expect(call.error).toMatchObject({ code: 'LEASE_LOST' })
})

it('the lock is free when withLock or a block with `await using` has ended', async () => {
  const { time, lock } = setUp(slow)
  const got: unknown[] = []
  void lock
    .withLock('a', (lease) => void lease.release())
    .then(async () => got.push((await lock.acquire('a')).acquired))
  const block = async (): Promise<void> => {
    await using lease = await lock.hold('b')
    void lease.release()
  }
  void block().then(async () => got.push((await lock.acquire('b')).acquired))
  await time.run(100)
  expect(got).toEqual([true, true])
})
