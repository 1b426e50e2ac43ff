import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterEach, describe, expect, it } from 'vitest'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, LeaderElection } from '../../../src/index.ts'
import { gate } from '../../harness/gate.ts'

const driver = memoryDriver()
const lock = new DistributedLock({ driver })
const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0)) await end()
})

/** Long enough to be granted, short enough to expire soon. */
const BRIEF = { timeoutSeconds: 0.15, heartbeat: false, blocking: true }

/** Claims the lock as an unrelated task does. True if it was acquired. */
const tries = async (): Promise<boolean> => (await lock.acquire('db', { blocking: false })).acquired

/**
 * Task A is inside the lock. Task B, outside any callback, takes a lease that will expire, and listens for that. A then
 * arms the timer with which B's lease expires. True if B's listener acquired the lock while A holds it.
 */
async function enteredFromCallback(listen: (entered: (result: Promise<boolean>) => void) => Promise<unknown>) {
  const [inside, listens, told] = [gate(), gate(), gate()]
  let entered: Promise<boolean> | undefined
  const a = lock.withLock('db', async () => {
    inside.open()
    await listens.opened
    // Expires first, so that the next timer is armed here, in the context of this callback.
    await lock.acquire('ends first', { timeoutSeconds: 0.05, blocking: true })
    await told.opened
    await entered
  })
  await inside.opened
  await listen((result) => {
    entered = result
    told.open()
  })
  listens.open()
  await a
  return entered
}

describe('failure 47: a callback of the library does not enter the lock of the task that triggered it', () => {
  it('a listener of an event', async () => {
    const entered = await enteredFromCallback(async (tell) => {
      ends.push(lock.on('lost', ({ lockName }) => lockName === 'b' && tell(tries())))
      await lock.hold('b', BRIEF)
    })
    expect(entered).toBe(false)
  })

  it('a subscriber of a diagnostics channel', async () => {
    const entered = await enteredFromCallback(async (tell) => {
      const hear = (event: unknown): void => {
        if ((event as { lockName: string }).lockName === 'b') tell(tries())
      }
      subscribe('holdfast:lost', hear)
      ends.push(() => unsubscribe('holdfast:lost', hear))
      await lock.hold('b', BRIEF)
    })
    expect(entered).toBe(false)
  })

  it("a listener of a lease's signal", async () => {
    const entered = await enteredFromCallback(async (tell) => {
      const { signal } = await lock.hold('b', BRIEF)
      // On a busy machine it may have expired by now.
      if (signal.aborted) tell(tries())
      else signal.addEventListener('abort', () => tell(tries()))
    })
    expect(entered).toBe(false)
  })

  it('a listener of the signal of an entered lease that outlives the function', async () => {
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

  it('onDemoted of a leader', async () => {
    const election = new LeaderElection({ driver, name: 'b' })
    ends.push(() => election.close())
    let entered: Promise<boolean> | undefined
    const term = await election.campaign({
      onDemoted: () => {
        entered = tries()
      },
    })
    await lock.withLock('db', async () => {
      // onDemoted is called in this step, which is inside the lock.
      await term.resign()
      expect(await entered).toBe(false)
    })
  })
})
