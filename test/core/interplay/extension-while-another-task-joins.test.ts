import { expect, it } from 'vitest'
import { type Fault, gate, setUp, watched } from './helper.ts'

const slowRenewals: Fault = (method) => (method === 'renew' ? { replyMs: 50 } : undefined)

it('an extension does not shorten a lease that another task is about to join', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock } = setUp(fault, { reacquire: 'extend' })
  const first = await lock.hold('name', { timeoutSeconds: 10, heartbeat: false })
  fault.now = slowRenewals
  const second = watched(lock.hold('name', { timeoutSeconds: 60, heartbeat: false }))
  await time.run(10)
  const cut = watched(first.extend(1))
  await time.run(500)
  expect([second.state, cut.value]).toEqual(['resolved', true])
  expect(second.value?.remainingSeconds).toBeGreaterThan(50)
})

it('a task that joins a lease gets its time to live, although a shorter extension is in flight', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock } = setUp(fault, { reacquire: 'extend' })
  const first = await lock.hold('name', { timeoutSeconds: 10, heartbeat: false })
  fault.now = slowRenewals
  const cut = watched(first.extend(1))
  await time.run(10)
  const second = watched(lock.hold('name', { timeoutSeconds: 60, heartbeat: false }))
  await time.run(500)
  expect([second.state, cut.value]).toEqual(['resolved', true])
  expect(second.value?.remainingSeconds).toBeGreaterThan(50)
})

it('an extension by name, by another task, does not shorten the lease under a function', async () => {
  const { time, lock } = setUp({ now: undefined })
  const end = gate()
  let left = 0
  const work = watched(
    lock.withLock(
      'name',
      async (lease) => {
        await end.opened
        left = lease.remainingSeconds
      },
      { timeoutSeconds: 60, heartbeat: false },
    ),
  )
  await time.run(10)
  const extended = watched(lock.extend('name', 1))
  await time.run(10)
  end.open()
  await time.run(10)
  expect([work.state, extended.value]).toEqual(['resolved', true])
  expect(left).toBeGreaterThan(50)
})
