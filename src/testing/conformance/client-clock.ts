import { AsyncLocalStorage } from 'node:async_hooks'

/**
 * Runs `body` with a `Date.now()` that is wrong by so much. Only there: whatever else the process does meanwhile, other
 * tests included, keeps the right time.
 */
export async function withClientClockAhead<T>(ms: number, body: () => Promise<T>): Promise<T> {
  if (users === 0) Date.now = () => rightNow() + (aheadMs.getStore() ?? 0)
  users += 1
  try {
    return await aheadMs.run(ms, body)
  } finally {
    users -= 1
    if (users === 0) Date.now = rightNow
  }
}

const aheadMs = new AsyncLocalStorage<number>()
const rightNow = Date.now
let users = 0
