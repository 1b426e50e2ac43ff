import { expect, it } from 'vitest'
import { gate, setUp, watched } from './helper.ts'

it.each([
  ['b', 'c'],
  ['c', 'b'],
])(
  'a function that withLocks has begun and does not await enters its locks again in any order: %s, then %s',
  async (first, second) => {
    const { time, lock } = setUp({ now: undefined })
    const outerHasEnded = gate()
    const order: string[] = []
    const work = watched(
      lock.withLocks(['b', 'c'], async () => {
        const inner = lock.withLock(first, async () => {
          await outerHasEnded.opened
          // Both are held until this function has ended: the end of `withLocks` waits for it.
          return lock.withLock(second, () => 'entered', { blocking: true })
        })
        inner.then(
          (value) => order.push(value),
          ({ code }) => order.push(code),
        )
      }),
    )
    await time.run(10)
    outerHasEnded.open()
    await time.run(60_000)
    expect(order).toEqual(['entered'])
    expect(work.state).toBe('resolved')
  },
)
