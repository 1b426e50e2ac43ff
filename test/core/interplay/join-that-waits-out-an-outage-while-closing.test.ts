import { describe, expect, it } from 'vitest'
import { ClosedError, StoreError } from '../../../src/core/errors.ts'
import { type Fault, gate, setUp, watched } from './helper.ts'

const down: Fault = () => ({ fails: new StoreError('down') })

describe.each(['refuse', 'extend'] as const)('reacquire: %s', (reacquire) => {
  async function waiting() {
    const fault: { now: Fault | undefined } = { now: undefined }
    const { time, lock, other } = setUp(fault, { reacquire })
    const end = gate()
    if (reacquire === 'extend') {
      watched(lock.withLock('name', () => end.opened, { timeoutSeconds: 600, heartbeat: false }))
      await time.run(1)
    }
    fault.now = down
    let hasBegun = false
    const claim = watched(
      lock.withLock(
        'name',
        () => {
          hasBegun = true
        },
        { timeoutSeconds: 600, blockingTimeoutSeconds: 60 },
      ),
    )
    await time.run(10_000)
    return { time, lock, other, fault, claim, end, hasBegun: () => hasBegun }
  }

  it('a claim that waits out an outage ends when its instance begins to drain', async () => {
    const { time, lock, fault, claim, end, hasBegun } = await waiting()
    const closed = watched(lock.close({ drainSeconds: 30 }))
    await time.run(1)
    fault.now = undefined
    await time.run(10_000)
    expect([claim.state, hasBegun()]).toEqual(['rejected', false])
    expect(claim.error).toBeInstanceOf(ClosedError)
    end.open()
    await time.run(60_000)
    expect(closed.state).toBe('resolved')
  })

  it('no claim that waits out an outage is left when its instance is closed', async () => {
    const { time, lock, claim, end } = await waiting()
    end.open()
    await time.run(1)
    let atEnd: string | undefined
    const closed = lock.close({ deadlineSeconds: 0.1 }).then(() => {
      atEnd = claim.state
    })
    await time.run(10_000)
    await closed
    expect(atEnd).toBe('rejected')
  })
})
