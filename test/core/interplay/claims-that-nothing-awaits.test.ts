import { expect, it } from 'vitest'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { OnceOnly, Semaphore } from '../../../src/index.ts'
import { setUp, watched } from './helper.ts'

it.each(['lock', 'semaphore', 'once', 'finally'])(
  'a call of a %s inside a callback that nothing awaits ends no other holder as deadlocked',
  async (kind) => {
    const { time, lock, other, store, settings } = setUp({ now: undefined })
    const rest = (ms: number): Promise<void> => new Promise((resolve) => void time.in(ms, resolve))
    const wait = { blockingTimeoutSeconds: 30 }
    const claimerOf = (one: typeof lock) => {
      const own = { ...settings, driver: memoryDriver({ store }) }
      const semaphore = new Semaphore({ ...own, limit: 1 })
      const once = new OnceOnly(own)
      return (fn: () => Promise<void> | void): Promise<void> => {
        if (kind === 'semaphore') return semaphore.withPermits('y', fn, wait)
        if (kind === 'once') return once.once('y', fn, { forSeconds: 60 })
        return one.withLock('y', fn, wait)
      }
    }
    const [claim, claimElsewhere] = [claimerOf(lock), claimerOf(other)]
    const errors: unknown[] = []
    const one = watched(
      lock.withLock('x', async () => {
        await rest(50)
        const call = claim(() => undefined)
        const handled = kind === 'finally' ? call.finally(() => undefined) : call
        handled.catch((error: unknown) => errors.push(error))
        await rest(4_000)
      }),
    )
    const two = watched(
      claimElsewhere(async () => {
        await rest(100)
        await other.withLock('x', () => undefined, wait)
      }),
    )
    await time.run(30_000)
    expect([one.state, two.state, errors]).toEqual(['resolved', 'resolved', []])
  },
)
