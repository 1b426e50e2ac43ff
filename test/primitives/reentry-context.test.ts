import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterEach, describe, expect, it } from 'vitest'
import { memoryDriver } from '../../src/drivers/memory.ts'
import { DistributedLock, LeaderElection } from '../../src/index.ts'
import { gate } from '../support/gate.ts'

const driver = memoryDriver()
const lock = new DistributedLock({ driver })
const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0)) await end()
})

/** Takes the lock as an unrelated task would, and says whether it was let in. */
const tries = async (): Promise<boolean> => (await lock.acquire('db', { blocking: false })).acquired

/**
 * Task B, outside of any callback, takes a lease that will run out and listens for that. Task A is inside the lock and arms
 * the timer with which B's lease runs out. Says whether B's listener was let in beside A.
 */
async function enteredFromCallback(listen: (entered: (result: Promise<boolean>) => void) => Promise<unknown>) {
  const told = gate()
  let entered: Promise<boolean> | undefined
  await listen((result) => {
    entered = result
    told.open()
  })
  await lock.withLock('db', async () => {
    // Ends before everything else does: so the next timer is armed here, in the context of this callback.
    await lock.acquire('ends first', { timeoutSeconds: 0.05, blocking: true })
    await told.opened
    await entered
  })
  return entered
}

describe('failure 47: a callback of the library does not enter the lock of the task that happened to set it off', () => {
  it('a listener of an event', async () => {
    const entered = await enteredFromCallback(async (tell) => {
      const lease = await lock.hold('b', { timeoutSeconds: 0.08, heartbeat: false, blocking: true })
      const stop = lock.on('lost', ({ fencingToken }) => fencingToken === lease.fencingToken && tell(tries()))
      ends.push(stop)
    })
    expect(entered).toBe(false)
  })

  it('a subscriber of a diagnostics channel', async () => {
    const entered = await enteredFromCallback(async (tell) => {
      const lease = await lock.hold('b', { timeoutSeconds: 0.08, heartbeat: false, blocking: true })
      const hear = (event: unknown): void => {
        if ((event as { fencingToken: number }).fencingToken === lease.fencingToken) tell(tries())
      }
      subscribe('holdfast:lost', hear)
      ends.push(() => unsubscribe('holdfast:lost', hear))
    })
    expect(entered).toBe(false)
  })

  it("a listener of a lease's signal", async () => {
    const entered = await enteredFromCallback(async (tell) => {
      const { signal } = await lock.hold('b', { timeoutSeconds: 0.08, heartbeat: false, blocking: true })
      signal.addEventListener('abort', () => tell(tries()))
    })
    expect(entered).toBe(false)
  })

  it('a listener of the signal of a lease that was entered, and outlives the function', async () => {
    let entered: Promise<boolean> | undefined
    await lock.withLock('db', async () => {
      await lock.withLock('b', async () => {
        const { signal } = await lock.hold('b')
        signal.addEventListener('abort', () => {
          entered = tries()
        })
      })
      expect(await entered).toBe(false)
    })
  })

  it('a leader that is told of its demotion', async () => {
    const election = new LeaderElection({ driver, name: 'b' })
    ends.push(() => election.close())
    let entered: Promise<boolean> | undefined
    const term = await election.campaign({
      onDemoted: () => {
        entered = tries()
      },
    })
    await lock.withLock('db', async () => {
      // The leader is told in this very step, which is inside the lock.
      await term.resign()
      expect(await entered).toBe(false)
    })
  })
})
