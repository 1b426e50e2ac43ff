import { expect, it } from 'vitest'
import { type Fault, gate, setUp, watched } from './helper.ts'

it('an extension by name by another task shortens no lease of a function that is about to begin', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock } = setUp(fault, { reacquire: 'extend' })
  const first = await lock.hold('name', { timeoutSeconds: 10, heartbeat: false })
  fault.now = (method) => (method === 'renew' ? { replyMs: 50 } : undefined)
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
  // The function that joins has the only use now.
  const released = watched(first.release())
  const extended = watched(lock.extend('name', 1))
  await time.run(500)
  end.open()
  await time.run(500)
  expect([released.value, extended.value, work.state]).toEqual([true, true, 'resolved'])
  expect(left).toBeGreaterThan(50)
})
