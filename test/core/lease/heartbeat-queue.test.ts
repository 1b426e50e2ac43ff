import { describe, expect, it } from 'vitest'
import type { RenewAnswer, Renewal } from '../../../src/core/driver.ts'
import { Emitter } from '../../../src/core/events.ts'
import { HeartbeatQueue } from '../../../src/core/lease/heartbeat-queue.ts'
import { createHeartbeat } from '../../../src/core/lease/local-renewer.ts'
import { NOT_RENEWED, type Renewable, type Renewer } from '../../../src/core/lease/renewer.ts'
import { MAX_RENEWALS_PER_TURN } from '../../../src/core/limits.ts'
import type { Receiver } from '../../../src/core/store/calls.ts'
import type { StoreClient } from '../../../src/core/store/store-client.ts'
import { type Clock, isPast } from '../../../src/core/time/clock.ts'
import { Scheduler } from '../../../src/core/time/scheduler.ts'
import { VirtualTime } from '../../../src/testing/virtual-clock.ts'

/** Virtual time with turns of the event loop that last `turnMs` each. */
function timeWithTurns(turnMs: number) {
  const time = new VirtualTime()
  const virtual = time.clock()
  const clock: Clock = {
    now: () => virtual.now(),
    setTimer: (run, delayMs) => virtual.setTimer(run, delayMs),
    nextTurn: (run) => void time.in(turnMs, run),
  }
  return { time, clock }
}

describe('the queue of heartbeats', () => {
  it('rule 13: sends a bounded number in each turn, in their order', async () => {
    const { time, clock } = timeWithTurns(1)
    const queue = new HeartbeatQueue(clock)
    const sent: { readonly index: number; readonly atMs: number }[] = []
    const count = 2 * MAX_RENEWALS_PER_TURN + 10
    for (let index = 0; index < count; index += 1) {
      queue.add({ sendHeartbeat: () => sent.push({ index, atMs: time.nowMs }) }, 5_000)
    }
    expect(sent).toEqual([])
    await time.run(100)
    expect(sent.map(({ index }) => index)).toEqual(Array.from({ length: count }, (_, index) => index))
    expect([1, 2, 3, 4].map((turn) => sent.filter(({ atMs }) => atMs === turn).length)).toEqual([
      MAX_RENEWALS_PER_TURN,
      MAX_RENEWALS_PER_TURN,
      10,
      0,
    ])
  })

  it('a lease that ends soon does not wait behind those that have more time', async () => {
    const { time, clock } = timeWithTurns(1)
    const queue = new HeartbeatQueue(clock)
    let urgentAtMs: number | undefined
    for (let index = 0; index < 10 * MAX_RENEWALS_PER_TURN; index += 1) queue.add({ sendHeartbeat() {} }, 5_000)
    queue.add({ sendHeartbeat: () => (urgentAtMs = time.nowMs) }, 30)
    await time.run(100)
    expect(urgentAtMs).toBe(1)
  })

  it('rule 3: a deadline is reported in time although thousands of heartbeats are due before it', async () => {
    const { time, requests, lostAtMs, hold } = renewers(20)
    for (let index = 0; index < 5_000; index += 1) hold(10_000, true)
    // Its deadline, 4,001 ms after the start, is in the middle of the 200 ms that it takes to send all heartbeats.
    hold(4_044, false)
    time.stall(3_950)
    await time.run(100)
    expect(lostAtMs).toHaveLength(1)
    expect(lostAtMs[0]).toBeLessThanOrEqual(4_002)
    expect(requests.length).toBeGreaterThan(0)
    expect(requests.length).toBeLessThan(5_000)
    await time.run(300)
    expect(requests).toHaveLength(5_000)
  })

  it('rule 2: a heartbeat that comes to its turn after the deadline is not sent', async () => {
    const { time, requests, lostAtMs, hold } = renewers(20)
    hold(1_000, true)
    time.stall(980)
    await time.run(5)
    expect(lostAtMs).toEqual([])
    time.stall(20)
    await time.run(100)
    expect(requests).toEqual([])
    expect(lostAtMs).toHaveLength(1)
  })

  it('a heartbeat in the queue does not undo an extension that was confirmed meanwhile', async () => {
    const { time, requests, hold } = renewers(20)
    const renewer = hold(1_000, true)
    time.stall(400)
    await time.run(5)
    const extended = renewer.renew(60_000, 'set')
    await time.run(1)
    const call = { sent: time.clock().now(), secret: '', retryAtMs: undefined }
    requests[0]?.receiver.answered('renewed', call, time.clock().now())
    expect(await extended).toBe(true)
    await time.run(100)
    expect(requests.map(({ ttlMs }) => ttlMs)).toEqual([60_000])
  })
})

/** Leases of a store that does not answer, and a clock whose turns last `turnMs`. */
function renewers(turnMs: number) {
  const { time, clock } = timeWithTurns(turnMs)
  const random = { fraction: () => 0.5, id: () => 'id' }
  const scheduler = new Scheduler(clock, random)
  const requests: { readonly ttlMs: number; readonly receiver: Receiver<RenewAnswer> }[] = []
  const add = ({ ttlMs }: Renewal, receiver: Receiver<RenewAnswer>) => requests.push({ ttlMs, receiver })
  const store = { renewals: { add } } as unknown as StoreClient
  const heartbeat = createHeartbeat({ clock, random, store, scheduler, events: new Emitter() })
  const lostAtMs: number[] = []
  const start = clock.now()
  const hold = (ttlMs: number, withHeartbeat: boolean): Renewer => {
    const ref = { lockName: 'name', claimId: 'claim', fencingToken: 1 }
    let isLost = false
    const lease: Renewable = {
      ttlMs,
      ref,
      eventBase: { ...ref, holderId: 'holder' },
      get held() {
        if (!isLost && isPast(renewer.deadline, clock.now())) this.lose(NOT_RENEWED)
        return !isLost
      },
      lose() {
        isLost = true
        lostAtMs.push(time.nowMs)
        void renewer.end()
      },
    }
    const options = { heartbeat: withHeartbeat, maxHoldMs: Number.POSITIVE_INFINITY }
    const renewer: Renewer = heartbeat.createRenewer(lease, { sent: start, answered: start, grantedMs: ttlMs }, options)
    return renewer
  }
  return { time, requests, lostAtMs, hold }
}
