import { expect, it } from 'vitest'
import { LeaseLostError } from '../../../src/core/errors.ts'
import { setUp, watched } from './helper.ts'

it('rule 16: a restored lease that is lost while a listener of `restored` runs tells its use', async () => {
  const { time, lock, other } = setUp({ now: undefined })
  const text = await (await lock.hold('name', { timeoutSeconds: 1, heartbeat: false })).serialize()
  let noticed: boolean | undefined
  other.on('restored', () => {
    // The event loop is blocked for longer than the lease, and the loss is noticed by the first look.
    time.stall(2_000)
    void other.extend('name', 1).then((isExtended) => {
      noticed = isExtended
    })
  })
  const restored = watched(other.restore(text))
  await time.run(10)
  expect(noticed).toBe(false)
  expect(restored.value?.held).toBe(false)
  expect(() => restored.value?.assertHeld()).toThrow(LeaseLostError)
  expect(restored.value?.signal.aborted).toBe(true)
})

it('the same for a lease that is acquired', async () => {
  const { time, lock } = setUp({ now: undefined })
  lock.on('acquired', () => {
    time.stall(2_000)
    void lock.extend('name', 1)
  })
  const acquired = watched(lock.hold('name', { timeoutSeconds: 1, heartbeat: false }))
  await time.run(10)
  expect(() => acquired.value?.assertHeld()).toThrow(LeaseLostError)
  expect(acquired.value?.signal.aborted).toBe(true)
})
