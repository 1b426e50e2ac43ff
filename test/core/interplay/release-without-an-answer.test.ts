import { expect, it } from 'vitest'
import { StoreError } from '../../../src/core/errors.ts'
import { type Fault, setUp, watched } from './helper.ts'

it('rule 18: the end of a use is unknown if the store denies the lease and does not answer the last use', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, other } = setUp(fault, { reacquire: 'extend' })
  const first = await lock.hold('name', { timeoutSeconds: 60, heartbeat: false })
  const second = await lock.hold('name', { timeoutSeconds: 60, heartbeat: false })
  const forced = watched(other.forceRelease('name', { by: 'ada' }))
  await time.run(10)
  expect(forced.value).toHaveLength(1)
  const rival = watched(other.acquire('name', { timeoutSeconds: 60 }))
  await time.run(10)
  expect(rival.value?.acquired).toBe(true)
  fault.now = (method) => (method === 'renew' ? { replyMs: 20 } : { fails: new StoreError('down') })
  const firstEnd = watched(first.release())
  await time.run(10)
  const secondEnd = watched(second.release())
  await time.run(5_000)
  expect(secondEnd.error).toBeInstanceOf(StoreError)
  // "true if the lease was still held", "throws StoreError if the store did not answer".
  expect(firstEnd.value).not.toBe(true)
})
