import { AsyncLocalStorage } from 'node:async_hooks'
import { wallClock } from '../../core/time/native-time.ts'

/**
 * Runs `body` with a `Date.now()` that is ahead by `ms`. Everything else that the process does meanwhile, such as other
 * tests, keeps the right time.
 */
export async function withClientClockAhead<T>(ms: number, body: () => Promise<T>): Promise<T> {
  if (users === 0) setNow(() => rightNow() + (aheadMs.getStore() ?? 0))
  users += 1
  try {
    return await aheadMs.run(ms, body)
  } finally {
    users -= 1
    if (users === 0) setNow(rightNow)
  }
}

/** For Holdfast, and for drivers that call `Date.now()`. */
function setNow(now: () => number): void {
  wallClock.nowMs = now
  Date.now = now
}

const aheadMs = new AsyncLocalStorage<number>()
const rightNow = Date.now
let users = 0
