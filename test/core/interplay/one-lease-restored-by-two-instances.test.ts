import { expect, it } from 'vitest'
import { DistributedLock } from '../../../src/index.ts'
import { type Fault, setUp, watched } from './helper.ts'

it('of two instances of one process that restore one text at the same time, one is rejected', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, driver, settings } = setUp(fault)
  const second = new DistributedLock({ ...settings, driver })
  const lease = await lock.hold('name', { timeoutSeconds: 30 })
  const text = await lease.serialize()
  fault.now = (method) => (method === 'renew' ? { replyMs: 20 } : undefined)
  const restored = [watched(lock.restore(text)), watched(second.restore(text))]
  await time.run(100)
  expect(restored.map(({ state }) => state)).toEqual(['resolved', 'rejected'])
})
