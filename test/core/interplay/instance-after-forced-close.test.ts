import { expect, it } from 'vitest'
import { DistributedLock } from '../../../src/index.ts'
import { type Fault, setUp, watched } from './helper.ts'

it('an instance that is made as soon as another one on its driver was closed by force works', async () => {
  const fault: { now: Fault | undefined } = { now: () => ({ hangs: 'request' }) }
  const { time, lock, driver, settings } = setUp(fault)
  watched(lock.acquire('unanswered'))
  await time.run(1)
  const next = lock.close({ deadlineSeconds: 1 }).then(() => {
    // The store answers again.
    fault.now = undefined
    return new DistributedLock({ ...settings, driver })
  })
  await time.run(5_000)
  const first = watched((await next).acquire('name'))
  await time.run(60_000)
  const second = watched((await next).acquire('another name'))
  await time.run(60_000)
  expect([first.error, second.error]).toEqual([undefined, undefined])
  expect([first.value?.acquired, second.value?.acquired]).toEqual([true, true])
})
