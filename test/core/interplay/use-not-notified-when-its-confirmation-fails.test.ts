import { expect, it } from 'vitest'
import { LeaseLostError } from '../../../src/core/errors.ts'
import { type Fault, gate, setUp, watched } from './helper.ts'

it('a use whose confirmation is not answered is notified of the loss that a heartbeat finds meanwhile', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, other } = setUp(fault, { reacquire: 'extend' })
  const end = gate()
  const outer = watched(lock.withLock('name', () => end.opened))
  await time.run(10)
  const use = await lock.hold('name')
  await other.forceRelease('name', { by: 'ada' })
  expect((await other.acquire('name')).acquired).toBe(true)
  // The answer to the confirmation is lost. That to the next heartbeat is not.
  let renewals = 0
  fault.now = (method) => (method === 'renew' && ++renewals === 1 ? { hangs: 'reply' } : undefined)
  end.open()
  await time.run(4_990)
  await time.run(5_000)
  expect(use.held).toBe(false)
  expect(outer.state).toBe('rejected')
  expect(outer.error).toBeInstanceOf(LeaseLostError)
})
