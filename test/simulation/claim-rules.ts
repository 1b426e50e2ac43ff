import type { Claim } from '../../src/core/driver.ts'
import { MAX_WITHDRAWAL_MS } from '../../src/core/limits.ts'
import { isPast } from '../../src/core/time/clock.ts'
import { type ClaimRecord, describe, type History, type SimulatedProcess } from './history.ts'
import { type LeaseRules, lostFrom } from './lease-rules.ts'
import type { DriverObserver } from './observe.ts'
import type { Job } from './plan.ts'
import type { StoreRules } from './store-rules.ts'

export interface ClaimRules {
  /** Observes the driver of one process. */
  observer(process: SimulatedProcess, jobOf: (claim: Claim) => Job | undefined): DriverObserver
  /** A job asks for its lock. Returns what to call when it is answered. */
  begin(job: Job, process: SimulatedProcess): (answer: 'granted' | 'refused' | 'failed') => void
  /** The history is over, and every message that will ever arrive has arrived. */
  end(): void
  /** Reports a violation unless the returned function is called within `ms` of the process's own time. */
  within(process: SimulatedProcess, ms: number, what: string): () => void
}

/**
 * What a process owes the store and its caller. The caller gets an answer in time, even if calls are lost. A claim that
 * was given up leaves nothing behind. No release overtakes its own request.
 */
export function claimRules(history: History, store: StoreRules, leases: LeaseRules): ClaimRules {
  const { plan, time } = history
  const givenUp = new Set<Job>()

  /** Undefined for a claim that a job makes only to keep its process busy. */
  function recordOf(claim: Claim, process: SimulatedProcess, job: Job | undefined): ClaimRecord | undefined {
    const now = process.clock.now()
    const known = history.claims.get(claim.claimId)
    if (known !== undefined || job === undefined) return known
    const record: ClaimRecord = {
      claimId: claim.claimId,
      lockName: claim.lockName,
      job,
      process,
      asking: [],
      firstAsk: now,
      lastAsk: now,
      lastAnsweredAsk: undefined,
      asks: 0,
      keptMs: 0,
      releasedAfterAsks: 0,
      endedByStore: false,
      releases: 0,
      releaseAnswered: false,
      releaseRefused: 'no',
      releasedMs: 0,
      keptForNobodyMs: undefined,
      // It may have been given up between the decision to ask and the end of that turn.
      over: givenUp.has(job) ? 'given up' : undefined,
      overSinceMs: time.nowMs,
      lease: undefined,
    }
    history.claims.set(claim.claimId, record)
    history.claimsByJob.set(job, record)
    return record
  }

  /** In the turn after the next, because a call may have to give the event loop a turn before it goes on. */
  const soon = (look: () => void) => time.in(0, () => time.in(0, look))

  /** Once no request of it is in flight. A refusal of a claim that does not queue leaves nothing to withdraw. */
  function mustBeWithdrawn(record: ClaimRecord): void {
    if (record.over !== 'given up' || record.asking.length > 0 || record.asks === 0) return
    // There one job makes several claims, and only its last claim is known to have been given up with it.
    if (record.process.reacquires) return
    if (record.releasedAfterAsks < record.asks)
      history.violate('a claim that is given up is withdrawn', describe(record))
  }

  function within(process: SimulatedProcess, ms: number, what: string): () => void {
    const { clock } = process
    let sinceMs = time.nowMs
    const look = (): void => {
      if (clock.runningSinceMs <= sinceMs) {
        history.violate('every call is answered in time', `${process.name}: ${what}`)
        return
      }
      // The process was stopped meanwhile, and its own timers may have started only then.
      sinceMs = time.nowMs
      timer = clock.setTimer(look, ms)
    }
    let timer = clock.setTimer(look, ms)
    return () => timer.cancel()
  }

  /** If the store has no queue, one waiter of a process contends, and the others wait behind it. */
  function standsFirst({ lockName, process, claimId }: ClaimRecord): void {
    for (const other of history.claims.values()) {
      const same = other.lockName === lockName && other.process === process && other.claimId !== claimId
      if (!same || other.asks === 0 || other.job.waitMs === 0 || isLeaving(other)) continue
      if (other.over === undefined && other.lease === undefined && !process.reacquires) {
        history.violate('only the first waiter of a process contends', `${claimId} beside ${other.claimId}`)
      }
    }
  }

  /** It has given up, and its caller is answered when its place is withdrawn. */
  function isLeaving({ lockName, job }: ClaimRecord): boolean {
    const waitedMs = time.nowMs - (history.waitingFor(lockName).get(job) ?? time.nowMs)
    // The clocks of processes run at different rates.
    return waitedMs * 1.1 >= Math.min(job.waitMs, job.abortAfterMs ?? Number.POSITIVE_INFINITY)
  }

  function keptForNobody(record: ClaimRecord): void {
    history.counts.lateAnswers += 1
    record.keptForNobodyMs = record.keptMs
  }

  return {
    within,

    end() {
      for (const record of history.claims.values()) {
        if (record.releases > 0 && record.releases < RELEASE_TRIES && !record.releaseAnswered) {
          history.violate('a release is sent until it is answered', `${describe(record)}: ${record.releases} times`)
        }
        if (record.keptForNobodyMs === undefined || record.releasedMs >= record.keptForNobodyMs) continue
        history.violate('what a claim gets after its end is released', `${describe(record)} (${record.over})`)
      }
    },

    observer: (process, jobOf) => ({
      clock: process.clock,

      calling() {
        history.counts.calls += 1
      },

      acquiring(claim, sent) {
        const record = recordOf(claim, process, jobOf(claim))
        if (record === undefined) return
        if (record.over !== undefined && record.overSinceMs < time.nowMs) {
          history.violate('nothing is sent for a claim that is over', `${describe(record)} (${record.over})`)
        }
        if (claim.waiterTtlMs > 0 && (plan.mode === 'wakes' || plan.mode === 'silent')) standsFirst(record)
        record.asks += 1
        record.lastAsk = sent
        record.asking.push(sent)
        history.note(() => `${process.name}: asks for ${claim.claimId}`)
        process.clock.setTimer(() => {
          if (!record.asking.includes(sent)) return
          record.asking.splice(record.asking.indexOf(sent), 1)
          record.lastAnsweredAsk ??= sent
          soon(() => mustBeWithdrawn(record))
        }, plan.callTimeoutMs + SOON_MS)
      },

      acquired(claim, answer, sent) {
        const record = recordOf(claim, process, jobOf(claim))
        if (record === undefined) return
        const place = record.asking.indexOf(sent)
        if (place >= 0) record.asking.splice(place, 1)
        const failed = answer instanceof Error
        history.note(
          () => `${process.name}: got the answer for ${claim.claimId}: ${failed ? answer.message : answer.granted}`,
        )
        // An answer at the last moment may have come too late for the process.
        const inTime = process.clock.now().monotonicMs - sent.monotonicMs < plan.callTimeoutMs - 1
        if (place >= 0 && (failed || !inTime)) record.lastAnsweredAsk ??= sent
        else if (place >= 0) record.lastAnsweredAsk = sent
        const kept = !failed && (answer.granted || answer.ahead !== undefined)
        // A lock that is kept for its `minHoldSeconds` is over, and must not be changed.
        const mayStay = record.over === 'released' && record.job.minHoldMs > 0
        if (kept && record.over !== undefined && !mayStay) keptForNobody(record)
        soon(() => mustBeWithdrawn(record))
      },

      granted(claimId) {
        const record = history.claims.get(claimId)
        if (record === undefined) return
        history.counts.handedOver += 1
        history.note(() => `${process.name}: is handed ${claimId}`)
        // The store may have answered any of its requests, but none before the first.
        record.lastAnsweredAsk = record.firstAsk
      },

      renewing(renewal, sent) {
        const record = history.claims.get(renewal.claimId)
        if (record === undefined) return
        history.note(() => `${process.name}: renews ${renewal.claimId} for ${renewal.ttlMs}`)
        const keeps = record.over === 'released' && record.job.minHoldMs > 0
        if (record.over !== undefined && record.overSinceMs < time.nowMs && !keeps) {
          history.violate('a lease that is over is not renewed', `${describe(record)} (${record.over})`)
        }
        leases.renewing(record, renewal, sent)
      },

      renewed(renewal, answer, sent) {
        const record = history.claims.get(renewal.claimId)
        history.note(() => `${process.name}: got the answer to the renewal of ${renewal.claimId}: ${answer}`)
        if (record === undefined) return
        if (answer === 'lost' && record.releaseRefused === 'no') record.releaseRefused = 'perhaps'
        leases.renewed(record, renewal, answer, sent)
      },

      released(lease, answer) {
        const record = history.claims.get(lease.claimId)
        if (record === undefined || answer instanceof Error) return
        record.releaseAnswered = true
        if (answer || record.releaseRefused === 'yes') return
        // After the end of the lease the store may have forgotten it.
        const inTime = record.lease !== undefined && !isPast(lostFrom(record.lease), process.clock.now())
        record.releaseRefused = record.releases === 1 && inTime ? 'yes' : 'perhaps'
      },

      releasing(lease) {
        const record = history.claims.get(lease.claimId)
        if (record === undefined) return
        history.note(() => `${process.name}: releases ${lease.claimId}`)
        record.releases += 1
        record.releasedMs = time.nowMs
        record.releasedAfterAsks = record.asks
        const nowMs = process.clock.now().monotonicMs
        if (record.asking.some((sent) => nowMs - sent.monotonicMs < plan.callTimeoutMs - 1)) {
          history.violate('a release does not overtake its own request', describe(record))
        }
        // The last use of a lease ends at the end of the turn.
        const unused = process.reacquires && record.lease?.uses.size === 0
        if (unused) leases.releasingUnused(record)
        else if (record.over === undefined && record.lease !== undefined) {
          history.violate('a lease is not released behind its holder', describe(record))
        }
      },
    }),

    begin(job, process) {
      const waiting = history.waitingFor(job.lockName)
      const beganMs = time.nowMs
      if (job.waitMs > 0) waiting.set(job, beganMs)
      process.asking.add(job)
      // A caller that gives up waits a moment for its place to be withdrawn.
      const boundMs = (job.waitMs > 0 ? job.waitMs : plan.callTimeoutMs) + MAX_WITHDRAWAL_MS
      // It first tries to extend its lease. After waiting for that, it finds that another task has the lock.
      const againMs = process.reacquires ? boundMs + 4 * plan.callTimeoutMs : 0
      const settled = within(
        process,
        boundMs + againMs + SOON_MS,
        `an acquire of "${job.lockName}" that waits ${job.waitMs} ms`,
      )
      return (answer) => {
        settled()
        waiting.delete(job)
        process.asking.delete(job)
        if (answer === 'granted') return
        const record = history.claimsByJob.get(job)
        if (answer === 'failed') history.counts.givenUp += 1
        if (answer === 'refused' && job.waitMs > 0) neededToWait(job, beganMs)
        if (record === undefined) {
          givenUp.add(job)
          return
        }
        record.over = answer === 'refused' && job.waitMs === 0 ? 'refused' : 'given up'
        record.overSinceMs = time.nowMs
        soon(() => mustBeWithdrawn(record))
      }
    },
  }

  /** No claim is refused on a lock that was free all the time. */
  function neededToWait(job: Job, beganMs: number): void {
    const freeSinceMs = store.freeSinceMs(job.lockName)
    if (freeSinceMs === undefined) return
    const idleMs = time.nowMs - Math.max(freeSinceMs, beganMs, history.quietFromMs)
    if (idleMs > store.longestIdleMs(job.lockName)) {
      history.violate(
        'a free lock is granted to a waiter',
        `"${job.lockName}" was refused after ${idleMs.toFixed(1)} ms idle`,
      )
    }
  }
}

/** Timers of a process run at whole milliseconds, one after the other. */
const SOON_MS = 3
const RELEASE_TRIES = 6
