import { expect, it } from 'vitest'
import { LeaseLostError } from '../../../src/core/errors.ts'
import { setUp, watched } from './helper.ts'

it('failure 49: a function does not begin under a lease that a listener of its grant has ended', async () => {
  const { time, lock } = setUp({ now: undefined })
  let hasBegun = false
  lock.on('acquired', () => {
    void lock.releaseAll()
  })
  const work = watched(
    lock.withLock('name', () => {
      hasBegun = true
    }),
  )
  await time.run(100)
  expect(hasBegun).toBe(false)
  expect(work.error).toBeInstanceOf(LeaseLostError)
})
