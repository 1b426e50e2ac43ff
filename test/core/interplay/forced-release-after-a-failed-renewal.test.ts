import { expect, it } from 'vitest'
import { StoreError } from '../../../src/core/errors.ts'
import { type Fault, setUp } from './helper.ts'

it('rule 17: after one failed renewal a forced release still reaches its victim within 5 s', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, other } = setUp(fault)
  const lease = await lock.hold('name', { timeoutSeconds: 3_600 })
  fault.now = (method) => (method === 'renew' ? { fails: new StoreError('reset') } : undefined)
  await time.run(6_000)
  fault.now = undefined
  await other.forceRelease('name', { by: 'ada' })
  await time.run(5_100)
  expect(lease.held).toBe(false)
})
