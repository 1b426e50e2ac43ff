import { getEventListeners } from 'node:events'
import { afterEach, describe, expect, test } from 'vitest'
import { onAbort, watchAbort } from '../../../src/core/time/abort.ts'
import { systemClock } from '../../../src/core/time/clock.ts'
import { pause } from '../../../src/core/time/pause.ts'
import { DistributedLock } from '../../../src/index.ts'

/** More than this, and Node warns of a leak. Removing one of thousands of listeners also takes long. */
const MOST_LISTENERS = 10

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

describe('the signal of a lease', () => {
  const lock = new DistributedLock({ url: 'memory:' })
  afterEach(() => lock.close())

  test('has one listener for all that enter the lock again at the same time', async () => {
    await lock.withLock('order:123', async ({ signal }) => {
      await Promise.all(
        Array.from({ length: 2 * MOST_LISTENERS }, () =>
          lock.withLock('order:123', async (inner) => {
            expect(inner.signal.aborted).toBe(false)
            await new Promise((resolve) => setTimeout(resolve, 5))
            expect(listeners(signal)).toBe(1)
          }),
        ),
      )
      expect(listeners(signal)).toBe(0)
    })
  })
})
