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

it('a restored lease is trusted no longer than a late restore of another instance would leave it', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, other, driver, settings } = setUp(fault)
  const second = new DistributedLock({ ...settings, driver })
  const lease = await lock.hold('name', { timeoutSeconds: 60 })
  const text = await lease.serialize()
  fault.now = (method) => (method === 'renew' ? { requestMs: 20_000 } : undefined)
  const first = watched(lock.restore(text, { timeoutSeconds: 1, heartbeat: false }))
  await time.run(15_000)
  expect(first).toMatchObject({ state: 'rejected', error: { code: 'STORE_UNAVAILABLE' } })
  fault.now = undefined
  const restored = watched(second.restore(text, { timeoutSeconds: 60, heartbeat: false }))
  await time.run(10)
  expect(restored.state).toBe('resolved')
  // The restore of the first instance arrives, and sets the lease to end after a second.
  await time.run(7_000)
  const rival = watched(other.acquire('name'))
  await time.run(10)
  expect([restored.value?.held, rival.value?.acquired]).not.toEqual([true, true])
})
