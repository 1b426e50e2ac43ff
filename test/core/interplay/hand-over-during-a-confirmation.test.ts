import { expect, it } from 'vitest'
import { LeaseLostError } from '../../../src/core/errors.ts'
import { type Fault, gate, setUp, watched } from './helper.ts'

it('a use that ends is notified of a loss that its confirmation finds, although the lease is handed over', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, other } = setUp(fault, { reacquire: 'extend' })
  const end = gate()
  const outer = watched(lock.withLock('name', () => end.opened))
  await time.run(10)
  const use = await lock.hold('name')
  await other.forceRelease('name', { by: 'ada' })
  expect((await other.acquire('name')).acquired).toBe(true)
  fault.now = (method) => (method === 'renew' ? { replyMs: 50 } : undefined)
  end.open()
  await time.run(1)
  const text = watched(use.serialize())
  await time.run(1_000)
  expect(text.state).not.toBe('pending')
  expect(outer.state).toBe('rejected')
  expect(outer.error).toBeInstanceOf(LeaseLostError)
})
