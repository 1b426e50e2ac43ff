import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'

let systemClock: typeof import('../../../src/core/time/clock.ts').systemClock

beforeEach(async () => {
  vi.useFakeTimers()
  // The module uses the timers that exist when it is loaded.
  vi.resetModules()
  systemClock = (await import('../../../src/core/time/clock.ts')).systemClock
})

afterEach(() => void vi.useRealTimers())

describe('the system clock', () => {
  const FORTY_DAYS_MS = 40 * 24 * 3_600_000

  it('runs a timer that is longer than Node supports after its full delay, not before', () => {
    let runs = 0
    systemClock.setTimer(() => {
      runs += 1
    }, FORTY_DAYS_MS)
    vi.advanceTimersByTime(FORTY_DAYS_MS - 1)
    expect(runs).toBe(0)
    vi.advanceTimersByTime(1)
    expect(runs).toBe(1)
  })

  it('cancels such a timer in its second step', () => {
    const timer = systemClock.setTimer(() => expect.unreachable(), FORTY_DAYS_MS)
    vi.advanceTimersByTime(FORTY_DAYS_MS - 1)
    timer.cancel()
    vi.advanceTimersByTime(10)
    expect(vi.getTimerCount()).toBe(0)
  })
})
