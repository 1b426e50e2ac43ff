import { expect, it } from 'vitest'
import { DistributedLock } from '../../../src/index.ts'
import { gate, setUp, watched } from './helper.ts'

it('a deadline that passes between two reads of the clock while a use is confirmed is a loss, not a bug', async () => {
  for (let jumpAt = 1; jumpAt <= 12; jumpAt += 1) {
    const { time, settings, driver } = setUp({ now: undefined })
    let reads = Number.NEGATIVE_INFINITY
    let jumpMs = 0
    const clock = {
      now: () => {
        reads += 1
        if (reads === jumpAt) jumpMs = 60_000
        const { monotonicMs, wallMs } = settings.clock.now()
        return { monotonicMs: monotonicMs + jumpMs, wallMs: wallMs + jumpMs }
      },
      setTimer: (run: () => void, ms: number) => settings.clock.setTimer(run, ms),
    }
    const lock = new DistributedLock({ driver, ...settings, clock })
    const inner = gate()
    const done = watched(
      lock.withLock('name', async () => {
        const again = await lock.hold('name')
        await inner.opened
        reads = 0
        await again.release()
      }),
    )
    await time.run(10)
    inner.open()
    await time.run(100)
    const { code } = (done.error ?? { code: 'none' }) as { code?: string }
    expect([jumpAt, code]).toEqual([jumpAt, expect.stringMatching(/^(?:none|LEASE_LOST)$/)])
  }
})
