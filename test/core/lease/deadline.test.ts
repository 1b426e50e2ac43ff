import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { grantFrom, LeaseDeadline, type RenewalInFlight, trustedUntil } from '../../../src/core/lease/deadline.ts'
import { type Instant, isPast, later } from '../../../src/core/time/clock.ts'

const start = { monotonicMs: 1_000, wallMs: 1_700_000_000_000 }

describe('rule 2: a lease is trusted until the time of sending + ttl − margin', () => {
  it('the margin is 1 % of the TTL + 2 ms', () => {
    expect(trustedUntil(start, 30_000)).toEqual(later(start, 30_000 - 302))
    expect(grantFrom(later(start, 29_698), 30_000)).toEqual({ sent: start, endsAtMs: start.monotonicMs + 30_000 })
  })

  it('failure 3: a lease ends as soon as one of the two clocks is past the deadline', () => {
    const deadline = trustedUntil(start, 1_000)
    expect(isPast(deadline, later(start, 987))).toBe(false)
    expect(isPast(deadline, { monotonicMs: start.monotonicMs, wallMs: start.wallMs + 60_000 })).toBe(true)
    expect(isPast(deadline, { monotonicMs: start.monotonicMs + 60_000, wallMs: start.wallMs - 60_000 })).toBe(true)
  })

  it('a shorter renewal brings the deadline forward when it is sent, before it is answered', () => {
    const lease = new LeaseDeadline({ sent: start, grantedMs: 30_000 })
    sending(lease, later(start, 10), 100)
    expect(lease.deadline).toEqual(trustedUntil(later(start, 10), 100))
  })

  it('failure 3: a renewal that is sent after the machine slept does not move the deadline of the other clock', () => {
    const lease = new LeaseDeadline({ sent: start, grantedMs: 60_000 })
    const slept = { monotonicMs: start.monotonicMs + 10, wallMs: start.wallMs + 50_000 }
    sending(lease, slept, 30_000)
    expect(lease.deadline.wallMs).toBe(trustedUntil(start, 60_000).wallMs)
    expect(lease.deadline.monotonicMs).toBe(trustedUntil(slept, 30_000).monotonicMs)
  })

  it('a renewal that was never answered may still shorten the lease after a later renewal is confirmed', () => {
    const lease = new LeaseDeadline({ sent: start, grantedMs: 30_000 })
    lease.unanswered(sending(lease, start, 1_000))
    lease.confirmed(sending(lease, later(start, 500), 60_000))
    expect(lease.deadline).toEqual(trustedUntil(later(start, 500), 1_000))
  })

  it('an earlier request that was never answered may still arrive after an extension', () => {
    const lease = new LeaseDeadline({ sent: start, grantedMs: 500, unansweredMs: 500 })
    lease.confirmed(sending(lease, later(start, 100), 60_000))
    expect(lease.deadline).toEqual(trustedUntil(later(start, 100), 500))
  })

  it('the deadline is never later than the end in the store, in any order of arrival', () => {
    const renewal = fc.record({
      sentMs: fc.nat(1_000),
      ttlMs: fc.integer({ min: 50, max: 5_000 }),
      arrivesAfterMs: fc.nat(500),
      answerAfterMs: fc.option(fc.nat(500), { nil: undefined }),
    })
    fc.assert(
      fc.property(fc.array(renewal, { maxLength: 6 }), fc.nat(8_000), (renewals, readAtMs) => {
        const ttlMs = 2_000
        const lease = new LeaseDeadline({ sent: start, grantedMs: ttlMs })
        let storeEndsMs = ttlMs
        const steps = renewals.flatMap(({ sentMs, ttlMs: ms, arrivesAfterMs, answerAfterMs }) => {
          const sent = later(start, sentMs)
          const arrivesMs = sentMs + arrivesAfterMs
          let renewal: RenewalInFlight | undefined
          const store = () => {
            if (arrivesMs < storeEndsMs) storeEndsMs = arrivesMs + ms
          }
          const answer =
            answerAfterMs === undefined
              ? { atMs: sentMs + 700, run: () => lease.unanswered(renewal as RenewalInFlight) }
              : { atMs: arrivesMs + answerAfterMs, run: () => lease.confirmed(renewal as RenewalInFlight) }
          const send = () => {
            renewal = sending(lease, sent, ms)
          }
          return [{ atMs: sentMs, run: send }, { atMs: arrivesMs, run: store }, answer]
        })
        const ordered = steps
          .map((step, index) => ({ ...step, index }))
          .sort((a, b) => a.atMs - b.atMs || a.index - b.index)
        for (const step of ordered) {
          if (step.atMs > readAtMs) break
          // The renewer checks the deadline before it sends and after each answer: a lease past its deadline is lost.
          if (isPast(lease.deadline, later(start, step.atMs))) return
          step.run()
        }
        if (!isPast(lease.deadline, later(start, readAtMs))) expect(readAtMs).toBeLessThan(storeEndsMs)
      }),
      { numRuns: 20_000 },
    )
  })
})

function sending(lease: LeaseDeadline, sent: Instant, ttlMs: number): RenewalInFlight {
  const renewal = { sent, ttlMs, provenMs: ttlMs }
  lease.sending(renewal)
  return renewal
}
