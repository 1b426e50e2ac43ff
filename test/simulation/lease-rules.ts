import type { RenewAnswer, Renewal } from '../../src/core/driver.ts'
import type { Lease } from '../../src/core/lease/lease.ts'
import { type Instant, isPast } from '../../src/core/time/clock.ts'
import { type ClaimRecord, describe, type History, type LeaseTrack } from './history.ts'
import { excludes } from './plan.ts'
import type { StoreRules } from './store-rules.ts'

export interface LeaseRules {
  /** A job has got a lease. */
  begin(lease: Lease, claim: ClaimRecord): LeaseTrack
  /** Checks a lease in the first statement after a step that took long. */
  afterStall(track: LeaseTrack): void
  /** A process runs again. */
  resumed(claims: Iterable<ClaimRecord>): void
  renewing(claim: ClaimRecord, renewal: Renewal, sent: Instant): void
  renewed(claim: ClaimRecord, renewal: Renewal, answer: RenewAnswer | Error, sent: Instant): void
  /** A job ends its use. Returns whether that is known to release the lease: another job may be about to use it. */
  released(claim: ClaimRecord, lease: Lease, byName?: boolean): boolean
  /** A lease that no job uses is released. A job that was expected to join it has not done so. */
  releasingUnused(claim: ClaimRecord): void
  lost(claim: ClaimRecord): void
}

/**
 * What a holder is owed. It never trusts its lease longer than `time of sending + ttl − margin`, which is computed here
 * again from what was sent and answered. It is notified by then, or as soon as it runs again. No lease is reported lost
 * without a reason.
 */
export function leaseRules(history: History, store: StoreRules): LeaseRules {
  const { plan, time } = history
  const sentAtMs = new WeakMap<Instant, number>()
  /** Answers that reach a process in this turn. After a stall in the same turn it may know them, or not yet. */
  const hearing = new WeakMap<LeaseTrack, LeaseTrack['confirmed'][number]>()

  /** The time by which the loss must be signalled, by the current clocks of the process. */
  function limitMs(track: LeaseTrack): number {
    const { clock } = track.claim.process
    const now = clock.now()
    const deadline = trustedUntil(track)
    const monotonicMs = time.nowMs + (deadline.monotonicMs - now.monotonicMs) / clock.rate
    const wallMs = time.nowMs + (deadline.wallMs - now.wallMs) / clock.rate
    // A wall clock that was set, or a machine that slept, is noticed within one interval of the scheduler.
    const noticedMs = Math.max(wallMs, clock.wallMovedAtMs + MAX_NAP_MS / clock.rate)
    return Math.max(clock.runningSinceMs, Math.min(monotonicMs, noticedMs)) + TIMER_MS / clock.rate
  }

  function watch(track: LeaseTrack): void {
    if (track.claim.over !== undefined) return
    if (!track.claim.process.clock.running || track.uses.size === 0) {
      // The process cannot be notified now: the limit moves to when it runs again. Or only a job that joins uses it.
      time.in(MAX_NAP_MS, () => watch(track))
      return
    }
    const atMs = limitMs(track)
    if (time.nowMs > atMs + ROUNDING_MS) {
      history.violate('a loss is signalled in time', `${describe(track.claim)} was not notified by ${atMs.toFixed(2)}`)
    } else time.in(atMs - time.nowMs + 2 * ROUNDING_MS, () => watch(track))
  }

  function end(claim: ClaimRecord, how: 'released' | 'lost'): void {
    if (claim.over !== undefined) return
    claim.over = how
    claim.overSinceMs = time.nowMs
    if (claim.lease !== undefined) history.heldOn(claim.lockName).delete(claim.lease)
  }

  /** A job that joins a lease uses it from its call on, although it has not been answered yet. */
  function endUnlessUsed(track: LeaseTrack): void {
    const [left] = track.uses.keys()
    if (left !== undefined) track.lease = left
    else if (isJoined(track.claim)) time.in(1, () => endUnlessUsed(track))
    else end(track.claim, 'released')
  }

  /** A heartbeat does not give a lease up after one failure: it tries several times. Without faults none is lost. */
  function triedHard(track: LeaseTrack): void {
    const { job, process } = track.claim
    const alone = track.extensions === 0 && !process.reacquires && job.maxHoldMs === undefined
    if (!job.heartbeat || track.refuted || !alone) return
    if (plan.kind === 'calm') history.violate('a heartbeat keeps its lease', describe(track.claim))
    const [last] = track.confirmed
    const sinceMs = Math.max(track.beganMs, last?.answeredMs ?? 0)
    const steady = process.clock.wallMovedAtMs < 0 && process.clock.runningSinceMs <= sinceMs
    if (track.confirmed.length > 1 || !steady || time.nowMs - sinceMs < (job.ttlMs * 2) / 3) return
    const tries = track.renewalsMs.filter((atMs) => atMs >= sinceMs).length
    if (tries < LEAST_TRIES)
      history.violate('one failed renewal is no loss', `${describe(track.claim)}: ${tries} tries`)
  }

  function mustHaveEnded(track: LeaseTrack, when: string): void {
    if (track.claim.over !== undefined || !track.claim.process.clock.running || hearing.has(track)) return
    const { lockName, claimId, process } = track.claim
    const past = isPast(trustedUntil(track), process.clock.now())
    const gone = excludes(plan) && !store.has(lockName, claimId)
    if ((past || gone) && track.lease.held) {
      history.violate(
        'held is false at once',
        `${describe(track.claim)} is held ${when}, ${past ? 'past its deadline' : 'ended'}`,
      )
    }
  }

  return {
    begin(lease, claim) {
      if (claim.lease !== undefined) {
        claim.lease.uses.set(lease, lease.signal)
        return claim.lease
      }
      const { ttlMs } = claim.job
      const earliest = claim.lastAnsweredAsk ?? claim.firstAsk
      const track: LeaseTrack = {
        lease,
        uses: new Map([[lease, lease.signal]]),
        lastReleased: undefined,
        claim,
        confirmed: [{ sent: claim.lastAsk, earliest, ttlMs, answeredMs: time.nowMs }],
        shortestMs: ttlMs,
        earliestSent: earliest,
        latestSent: claim.lastAsk,
        beganMs: time.nowMs,
        refuted: false,
        extensions: 0,
        renewalsMs: [],
      }
      claim.lease = track
      for (const other of history.heldOn(claim.lockName)) {
        if (excludes(plan) && other.claim.process.clock.running && other.lease.held) {
          history.violate(
            'mutual exclusion',
            `${describe(claim)} was answered "acquired" while ${describe(other.claim)} is held`,
          )
        }
      }
      if (claim.over === undefined) history.heldOn(claim.lockName).add(track)
      watch(track)
      return track
    },

    afterStall(track) {
      mustHaveEnded(track, 'after a stall')
    },

    resumed(claims) {
      const tracks = [...claims].flatMap(({ lease }) => (lease === undefined ? [] : [lease]))
      for (const track of tracks) time.in(0, () => mustHaveEnded(track, 'after a pause'))
      // Reading `held` makes a lease notice its end. So in half of the histories it is not read before timers and
      // messages have run.
      if (plan.seed % 2 === 0) for (const track of tracks) mustHaveEnded(track, 'in the first moment after a pause')
    },

    renewing(claim, { ttlMs }, sent) {
      sentAtMs.set(sent, time.nowMs)
      const track = claim.lease
      if (track === undefined) return
      track.shortestMs = Math.min(track.shortestMs, ttlMs)
      track.renewalsMs.push(time.nowMs)
      if (claim.over !== undefined || claim.process.reacquires) return
      const { maxHoldMs = Number.POSITIVE_INFINITY } = claim.job
      const nowMs = claim.process.clock.now().monotonicMs
      // The end of a use confirms the lease with a renewal that leaves its end as it is.
      const isHeartbeat = ttlMs >= claim.job.ttlMs
      if (isHeartbeat && track.extensions === 0 && nowMs - track.latestSent.monotonicMs > maxHoldMs + ROUNDING_MS) {
        history.violate('the heartbeat stops after maxHoldSeconds', describe(claim))
      }
      // Six tries before a lease ends, with pauses in between.
      const paceMs = track.shortestMs / MAX_RENEWALS
      if (
        track.renewalsMs.length - track.extensions >
        SOME_RENEWALS + (nowMs - track.earliestSent.monotonicMs) / paceMs
      ) {
        history.violate('renewals keep their pace', `${describe(claim)}: ${track.renewalsMs.length}`)
      }
    },

    renewed(claim, { ttlMs }, answer, sent) {
      const track = claim.lease
      if (track === undefined || answer instanceof Error) return
      const { clock } = claim.process
      if (answer === 'lost') track.refuted = true
      else if (isPast(trustedUntil(track), clock.now())) {
        time.in(0, () => mustHaveEnded(track, 'after a renewal that came back too late'))
      } else {
        const agoMs = clock.now().monotonicMs - sent.monotonicMs
        const sentMs = sentAtMs.get(sent) ?? 0
        // After the deadline an answer counts for nothing. But a process that was stopped may find it before the timer
        // of the deadline.
        const inTime = agoMs <= plan.callTimeoutMs - TIMER_MS
        if (!inTime && agoMs > plan.callTimeoutMs + TIMER_MS && clock.runningSinceMs <= sentMs + ROUNDING_MS) return
        const confirmed = { sent, earliest: sent, ttlMs, answeredMs: time.nowMs }
        // After the process got the answer: what it decides in this turn, it decides by what it knew.
        hearing.set(track, confirmed)
        time.in(0, () => {
          if (hearing.get(track) === confirmed) hearing.delete(track)
          if (inTime) track.confirmed = track.confirmed.filter((each) => each.answeredMs >= sentMs - ROUNDING_MS)
          track.confirmed.push(confirmed)
        })
      }
    },

    released(claim, lease, byName = false) {
      const track = claim.lease
      if (track === undefined || byName || !claim.process.reacquires) {
        end(claim, 'released')
        return true
      }
      track.lastReleased = track.uses.get(lease)
      track.uses.delete(lease)
      // At the end of this turn: a job that got a use of it in this turn has not begun yet.
      time.in(0, () => endUnlessUsed(track))
      return false
    },

    releasingUnused: (claim) => end(claim, 'released'),

    lost(claim) {
      const track = claim.lease
      history.counts.losses += 1
      history.note(() => `${describe(claim)} is lost`)
      if (track !== undefined && claim.over === undefined) {
        const atMs = limitMs(track)
        if (time.nowMs > atMs + ROUNDING_MS) {
          history.violate(
            'a loss is signalled in time',
            `${describe(claim)} was notified ${(time.nowMs - atMs).toFixed(2)} ms late`,
          )
        }
        // A wall clock that is set forward and back may take away time that has not passed.
        const steady = claim.process.clock.wallMovedAtMs === Number.NEGATIVE_INFINITY
        if (steady && !track.refuted && !isPast(lostFrom(track), claim.process.clock.now())) {
          history.violate('a lease is not reported lost without a reason', describe(claim))
        }
      }
      if (claim.over === 'released' && claim.releaseRefused === 'no') {
        history.violate('a lease is not reported lost without a reason', `${describe(claim)} after its release`)
      }
      if (track !== undefined && claim.over === undefined) triedHard(track)
      end(claim, 'lost')
      time.in(0, () => {
        const released = isJoined(claim) ? [] : [track?.lastReleased]
        const signals = track?.uses.size === 0 ? released : [...(track?.uses.values() ?? [])]
        if (signals.some((signal) => signal?.aborted === false))
          history.violate('a loss is signalled in time', `${describe(claim)}: no abort`)
      })
    },
  }
}

const isJoined = ({ process, lockName }: ClaimRecord): boolean =>
  process.reacquires && [...process.asking].some((job) => job.lockName === lockName)

const margin = (ttlMs: number): number => ttlMs / 100 + 2

/** The latest time at which the holder may trust the lease, for any order in which the store did the requests. */
function trustedUntil({ confirmed }: LeaseTrack): Instant {
  const ends = confirmed.map(({ sent, ttlMs }) => ({ sent, forMs: ttlMs - margin(ttlMs) }))
  return {
    monotonicMs: Math.max(...ends.map(({ sent, forMs }) => sent.monotonicMs + forMs)),
    wallMs: Math.max(...ends.map(({ sent, forMs }) => sent.wallMs + forMs)),
  }
}

/** The earliest time at which a holder may have to give up, if the shortest request of all took effect. */
export function lostFrom({ confirmed, shortestMs }: LeaseTrack): Instant {
  const forMs = shortestMs - margin(shortestMs) - EARLY_MS
  return {
    monotonicMs: Math.min(...confirmed.map(({ earliest }) => earliest.monotonicMs)) + forMs,
    wallMs: Math.min(...confirmed.map(({ earliest }) => earliest.wallMs)) + forMs,
  }
}

/** How long a changed wall clock may go unnoticed. Stated here again, so that the bound cannot grow unnoticed. */
const MAX_NAP_MS = 1_000
/** A timer runs up to a millisecond late. */
const TIMER_MS = 1.1
/** A signal may come this much early, so that its timer does not make it late. */
const EARLY_MS = 2
const ROUNDING_MS = 0.01
/** In one TTL. Nine are intended, and jitter adds a few. */
const MAX_RENEWALS = 11
const SOME_RENEWALS = 4
/** Six are intended. The first ones may coincide with the last answer on the scheduler's grid. */
const LEAST_TRIES = 3
