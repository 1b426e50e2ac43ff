import { expect, it } from 'vitest'
import { ClosedError } from '../../../src/core/errors.ts'
import { type Fault, setUp, watched } from './helper.ts'

it('forced closing fails every call in flight', async () => {
  const fault: { now: Fault | undefined } = { now: () => ({ hangs: 'request' }) }
  const { time, lock } = setUp(fault, { callTimeoutSeconds: 600 })
  const claims = []
  for (let at = 0; at < 4; at += 1) {
    claims.push(watched(lock.acquire(`name:${at}`)))
    await time.run(1)
  }
  const closing = watched(lock.close({ deadlineSeconds: 1 }))
  await time.run(5_000)
  expect(closing.state).toBe('resolved')
  expect(claims.map(({ state }) => state)).toEqual(['rejected', 'rejected', 'rejected', 'rejected'])
  for (const { error } of claims) expect(error).toBeInstanceOf(ClosedError)
})
