import { afterEach, describe, expect, it, vi } from 'vitest'
import { systemClock } from '../../src/core/clock.ts'

afterEach(() => vi.useRealTimers())

describe("the system's clock", () => {
  const FORTY_DAYS_MS = 40 * 24 * 3_600_000

  it('runs a timer that is longer than Node has any after all of its time, not before', () => {
    vi.useFakeTimers()
    let runs = 0
    systemClock.setTimer(() => {
      runs += 1
    }, FORTY_DAYS_MS)
    vi.advanceTimersByTime(FORTY_DAYS_MS - 1)
    expect(runs).toBe(0)
    vi.advanceTimersByTime(1)
    expect(runs).toBe(1)
  })

  it('cancels such a timer in its second step, too', () => {
    vi.useFakeTimers()
    const timer = systemClock.setTimer(() => expect.unreachable(), FORTY_DAYS_MS)
    vi.advanceTimersByTime(FORTY_DAYS_MS - 1)
    timer.cancel()
    vi.advanceTimersByTime(10)
    expect(vi.getTimerCount()).toBe(0)
  })
})
