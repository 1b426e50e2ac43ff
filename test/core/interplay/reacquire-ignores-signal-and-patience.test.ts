import { expect, it } from 'vitest'
import { type Fault, setUp, watched } from './helper.ts'

it.each([
  ['its signal', {}],
  ['its waiting time', { blockingTimeoutSeconds: 0.3 }],
])('reacquire: extend is bounded by %s while the store does not answer the extension', async (what, options) => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock } = setUp(fault, { reacquire: 'extend' })
  await lock.acquire('name')
  await time.run(1_000)
  fault.now = (method) => (method === 'renew' ? { hangs: 'request' } : undefined)
  const abort = new AbortController()
  const again = watched(lock.acquire('name', { ...options, signal: abort.signal }))
  await time.run(100)
  if (what === 'its signal') abort.abort()
  await time.run(900)
  expect(again.state).toBe('rejected')
})
