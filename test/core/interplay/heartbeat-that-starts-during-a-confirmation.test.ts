import { expect, it } from 'vitest'
import { type Fault, gate, setUp, watched } from './helper.ts'

it.each([0, 1, 2, 3, 4, 5])(
  'a heartbeat that starts while a use is confirmed keeps running (release %i microtasks after the claim)',
  async (microtasks) => {
    const fault: { now: Fault | undefined } = { now: undefined }
    const { time, lock, other } = setUp(fault, { reacquire: 'extend' })
    const [first, second] = [await lock.acquire('name'), await lock.acquire('name')]
    if (!first.acquired || !second.acquired) throw new Error('not acquired')
    await time.run(1_000)
    fault.now = (method) => (method === 'renew' ? { replyMs: 100 } : undefined)
    const end = gate()
    // Its TTL is covered, so it extends nothing. It starts the heartbeat of the lease.
    const work = watched(lock.withLock('name', () => end.opened, { timeoutSeconds: 20 }))
    for (let at = 0; at < microtasks; at += 1) await undefined
    // Not the last use, so it confirms with a renewal.
    const ended = watched(second.lock.release())
    await time.run(60_000)
    expect(ended.state).toBe('resolved')
    const rival = await other.acquire('name')
    end.open()
    await time.run(1_000)
    expect({ work: work.state, rival: rival.acquired }).toEqual({ work: 'resolved', rival: false })
  },
)
