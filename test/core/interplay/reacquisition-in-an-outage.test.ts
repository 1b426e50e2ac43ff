import { expect, it } from 'vitest'
import { StoreError } from '../../../src/core/errors.ts'
import { type Fault, setUp, watched } from './helper.ts'

const down: Fault = () => ({ fails: new StoreError('down') })

it.each(['refuse', 'extend'] as const)(
  'a claim that waits also waits out a short outage (reacquire: %s)',
  async (reacquire) => {
    const fault: { now: Fault | undefined } = { now: undefined }
    const { time, lock } = setUp(fault, { reacquire })
    if (reacquire === 'extend') await lock.hold('name', { timeoutSeconds: 30, heartbeat: false })
    fault.now = down
    const claim = watched(lock.hold('name', { timeoutSeconds: 60, blockingTimeoutSeconds: 20 }))
    await time.run(500)
    fault.now = undefined
    await time.run(30_000)
    expect(claim.error).toBeUndefined()
    expect(claim.value?.held).toBe(true)
  },
)
