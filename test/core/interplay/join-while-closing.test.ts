import { expect, it } from 'vitest'
import { type Fault, gate, setUp, watched } from './helper.ts'

it.each(['refuse', 'extend'] as const)(
  'no function begins after its instance has begun to close, if the store answers its claim only then (reacquire: %s)',
  async (reacquire) => {
    const fault: { now: Fault | undefined } = { now: undefined }
    const { time, lock } = setUp(fault, { reacquire })
    const end = gate()
    // Closing waits for it.
    watched(lock.withLock('name', () => end.opened))
    await time.run(10)
    fault.now = () => ({ replyMs: 50 })
    let hasBegun = false
    const name = reacquire === 'extend' ? 'name' : 'another name'
    const second = watched(
      lock.withLock(
        name,
        () => {
          hasBegun = true
        },
        { timeoutSeconds: 60 },
      ),
    )
    await time.run(10)
    const closing = watched(lock.close({ deadlineSeconds: 5 }))
    await time.run(200)
    expect(hasBegun).toBe(false)
    end.open()
    await time.run(10_000)
    expect(closing.state).toBe('resolved')
    expect(second.error).toMatchObject({ code: 'CLOSED' })
  },
)
