import { describe, expect, it } from 'vitest'
import { Emitter } from '../../../src/core/events.ts'
import { createHeartbeat } from '../../../src/core/lease/local-renewer.ts'
import type { Renewable, Renewer } from '../../../src/core/lease/renewer.ts'
import type { StoreClient } from '../../../src/core/store/store-client.ts'
import { isPast } from '../../../src/core/time/clock.ts'
import { Scheduler } from '../../../src/core/time/scheduler.ts'
import { VirtualTime } from '../../../src/testing/virtual-clock.ts'

describe('the renewer on the event loop', () => {
  it('a lease that expires while its heartbeat is being sent leaves nothing in the scheduler', async () => {
    const time = new VirtualTime()
    const clock = time.clock()
    let stallMs = 0
    // It is asked between the check of the deadline and the renewal: there, the process stalls once.
    const fraction = (): number => {
      time.stall(stallMs)
      stallMs = 0
      return 0
    }
    const random = { fraction, id: () => 'id' }
    const scheduler = new Scheduler(clock, random)
    const store = { renewals: { add: () => undefined } } as unknown as StoreClient
    const lost: string[] = []
    const ref = { lockName: 'name', claimId: 'claim', fencingToken: 1 }
    const lease: Renewable = {
      ttlMs: 1_000,
      ref,
      eventBase: { ...ref, holderId: 'holder' },
      get held() {
        if (lost.length === 0 && isPast(renewer.deadline, clock.now())) this.lose({ kind: 'expired', message: 'late' })
        return lost.length === 0
      },
      lose({ message }) {
        lost.push(message)
        void renewer.end()
      },
    }
    const now = clock.now()
    const heartbeat = createHeartbeat({ clock, random, store, scheduler, events: new Emitter() })
    const options = { heartbeat: true, maxHoldMs: Number.POSITIVE_INFINITY }
    const renewer: Renewer = heartbeat.createRenewer(lease, { sent: now, answered: now, grantedMs: 1_000 }, options)
    stallMs = 5_000
    await time.run(10_000)
    expect(lost).toEqual(['late'])
    expect(scheduler.size).toBe(0)
  })
})
