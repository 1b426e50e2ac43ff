import { expect, it } from 'vitest'
import { type Fault, gate, setUp, watched } from './helper.ts'

it('a lease that expires after a use has ended, and before that is confirmed, is no loss to the use', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock } = setUp(fault, { reacquire: 'extend' })
  const end = gate()
  const options = { timeoutSeconds: 1, heartbeat: false }
  const first = watched(lock.withLock('name', () => end.opened, options))
  await time.run(10)
  const second = await lock.hold('name', options)
  // The confirmation is not answered, and the second use lets the lease expire.
  fault.now = (method) => (method === 'renew' ? { hangs: 'reply' } : undefined)
  end.open()
  await time.run(1_500)
  expect(second.held).toBe(false)
  await time.run(9_000)
  expect(first.state).toBe('resolved')
})
