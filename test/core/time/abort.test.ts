import { getEventListeners } from 'node:events'
import { describe, expect, test } from 'vitest'
import { onAbort, pause, watchAbort } from '../../../src/core/time/abort.ts'
import { systemClock } from '../../../src/core/time/clock.ts'

/** Above ten, Node warns of a leak. Removing one of thousands also takes long. */
const listeners = (signal: AbortSignal): number => getEventListeners(signal, 'abort').length

describe('a signal that many use at once', () => {
  test('has one listener for thousands of pauses, and none after them', async () => {
    const { signal } = new AbortController()
    const pauses = Array.from({ length: 5_000 }, () => pause(systemClock, 30, signal))
    expect(listeners(signal)).toBe(1)
    await Promise.all(pauses)
    expect(listeners(signal)).toBe(0)
  })

  test('ends all pauses when it aborts', async () => {
    const abort = new AbortController()
    const pauses = Array.from({ length: 100 }, () => pause(systemClock, 60_000, abort.signal))
    abort.abort()
    await Promise.all(pauses)
    expect(listeners(abort.signal)).toBe(0)
  })

  test('calls each listener once, in order, and not those that were removed', () => {
    const abort = new AbortController()
    const called: number[] = []
    const stops = [0, 1, 2, 3].map((each) => onAbort(abort.signal, () => called.push(each)))
    watchAbort(abort.signal, { aborted: () => called.push(4) })
    expect(listeners(abort.signal)).toBe(1)
    stops[1]?.()
    stops[1]?.()
    // One listener removes another.
    onAbort(abort.signal, () => last())
    const last = onAbort(abort.signal, () => called.push(5))
    abort.abort()
    expect(called).toEqual([0, 2, 3, 4])
    for (const stop of stops) stop()
  })

  test('calls a listener that is added after it has aborted', async () => {
    const called: string[] = []
    onAbort(AbortSignal.abort(), () => called.push('aborted'))
    await Promise.resolve()
    expect(called).toEqual(['aborted'])
  })
})
