import { expect, it } from 'vitest'
import { ClosedError } from '../../../src/core/errors.ts'
import { DistributedLock } from '../../../src/index.ts'
import { type Fault, setUp, watched } from './helper.ts'

it('forced closing of all instances on one driver fails every call in flight', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, driver, settings } = setUp(fault, { callTimeoutSeconds: 600 })
  const second = new DistributedLock({ ...settings, driver, callTimeoutSeconds: 600 })
  fault.now = () => ({ hangs: 'request' })
  const claims = [watched(lock.acquire('a')), watched(second.acquire('b'))]
  await time.run(1)
  const closing = [watched(lock.close({ deadlineSeconds: 1 })), watched(second.close({ deadlineSeconds: 1 }))]
  await time.run(60_000)
  expect(closing.map(({ state }) => state)).toEqual(['resolved', 'resolved'])
  // `CloseOptions.deadlineSeconds`: a call that the store has not answered by the end fails with `ClosedError`.
  expect(claims.map(({ state }) => state)).toEqual(['rejected', 'rejected'])
  for (const { error } of claims) expect(error).toBeInstanceOf(ClosedError)
})
