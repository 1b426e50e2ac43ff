import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { grantFrom, type InFlight, LeaseDeadline, trustedUntil } from '../../../src/core/lease/deadline.ts'
import { isPast, later } from '../../../src/core/time/clock.ts'

const start = { monotonicMs: 1_000, wallMs: 1_700_000_000_000 }

describe('rule 2: a lease is trusted until the time of sending + ttl − margin', () => {
  it('the margin is 1 % of the ttl and 2 ms', () => {
    expect(trustedUntil(start, 30_000)).toEqual(later(start, 30_000 - 302))
    expect(grantFrom(later(start, 29_698), 30_000)).toEqual({ sent: start, endsAtMs: start.monotonicMs + 30_000 })
  })

  it('failure 3: either clock past the deadline ends it', () => {
    const deadline = trustedUntil(start, 1_000)
    expect(isPast(deadline, later(start, 987))).toBe(false)
    expect(isPast(deadline, { monotonicMs: start.monotonicMs, wallMs: start.wallMs + 60_000 })).toBe(true)
    expect(isPast(deadline, { monotonicMs: start.monotonicMs + 60_000, wallMs: start.wallMs - 60_000 })).toBe(true)
  })

  it('a shorter renewal counts from its sending, before its answer', () => {
    const trust = new LeaseDeadline({ sent: start, grantedMs: 30_000 })
    trust.sending(later(start, 10), 100)
    expect(trust.deadline).toEqual(trustedUntil(later(start, 10), 100))
  })

  it('failure 3: a renewal that is sent after the machine slept does not lengthen the trust by the other clock', () => {
    const trust = new LeaseDeadline({ sent: start, grantedMs: 60_000 })
    const slept = { monotonicMs: start.monotonicMs + 10, wallMs: start.wallMs + 50_000 }
    trust.sending(slept, 30_000)
    expect(trust.deadline.wallMs).toBe(trustedUntil(start, 60_000).wallMs)
    expect(trust.deadline.monotonicMs).toBe(trustedUntil(slept, 30_000).monotonicMs)
  })

  it('a renewal whose answer never came may still shorten the lease, whatever is confirmed after it', () => {
    const trust = new LeaseDeadline({ sent: start, grantedMs: 30_000 })
    trust.unanswered(trust.sending(start, 1_000))
    trust.confirmed(trust.sending(later(start, 500), 60_000))
    expect(trust.deadline).toEqual(trustedUntil(later(start, 500), 1_000))
  })

  it('a request for the same lease whose answer never came may still arrive after an extension', () => {
    const trust = new LeaseDeadline({ sent: start, grantedMs: 500, unansweredMs: 500 })
    trust.confirmed(trust.sending(later(start, 100), 60_000))
    expect(trust.deadline).toEqual(trustedUntil(later(start, 100), 500))
  })

  it('never outlives what the store has, in whatever order renewals arrive there', () => {
    const renewal = fc.record({
      sentMs: fc.nat(1_000),
      ttlMs: fc.integer({ min: 50, max: 5_000 }),
      arrivesAfterMs: fc.nat(500),
      answerAfterMs: fc.option(fc.nat(500), { nil: undefined }),
    })
    fc.assert(
      fc.property(fc.array(renewal, { maxLength: 6 }), fc.nat(8_000), (renewals, lookMs) => {
        const ttlMs = 2_000
        const trust = new LeaseDeadline({ sent: start, grantedMs: ttlMs })
        let storeEndsMs = ttlMs
        const steps = renewals.flatMap(({ sentMs, ttlMs: ms, arrivesAfterMs, answerAfterMs }) => {
          const sent = later(start, sentMs)
          const arrivesMs = sentMs + arrivesAfterMs
          let renewal: InFlight | undefined
          const store = () => {
            if (arrivesMs < storeEndsMs) storeEndsMs = arrivesMs + ms
          }
          const answer =
            answerAfterMs === undefined
              ? { atMs: sentMs + 700, run: () => trust.unanswered(renewal as InFlight) }
              : { atMs: arrivesMs + answerAfterMs, run: () => trust.confirmed(renewal as InFlight) }
          const send = () => {
            renewal = trust.sending(sent, ms)
          }
          return [{ atMs: sentMs, run: send }, { atMs: arrivesMs, run: store }, answer]
        })
        const ordered = steps
          .map((step, index) => ({ ...step, index }))
          .sort((a, b) => a.atMs - b.atMs || a.index - b.index)
        for (const step of ordered) {
          if (step.atMs > lookMs) break
          // The heartbeat asks before it sends and after an answer came; a lease that is past is over.
          if (isPast(trust.deadline, later(start, step.atMs))) return
          step.run()
        }
        if (!isPast(trust.deadline, later(start, lookMs))) expect(lookMs).toBeLessThan(storeEndsMs)
      }),
      { numRuns: 20_000 },
    )
  })
})
