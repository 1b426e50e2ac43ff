import type { LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { CALL_TIMEOUT_MS, FORCE_TIMEOUT_MS } from '../core/limits.ts'
import { recordPrefix } from '../primitives/lock/forced-release-record.ts'
import type { LockView, SeenForcedRelease, StoreView } from './lock-view.ts'
import { HISTORY_MS, type Span, type SpanEnd } from './wire.ts'

/** What happened between two readings. */
export interface Happened {
  granted: number
  released: number
  expired: number
  forceReleased: number
}

type OpenSpan = { -readonly [Name in keyof Span]: Span[Name] } & {
  round: number
  /** When it was read last. */
  seenMs: number
  lastEndMs?: number
  /** Its TTL at most: it was granted or renewed after the reading before. */
  ttlMs: number
}

/**
 * Who held which lock when, for one hour. It is derived from readings: a lease that began and ended between two of them
 * is not seen. How a lease ended follows from its last known end, the lease that follows it, and the record of a
 * forced release. Where these leave it open, the end is unknown.
 * Everything that decides is on the store's clock.
 */
export class History {
  readonly #spans = new Map<string, OpenSpan[]>()
  readonly #open = new Map<string, { name: string; span: OpenSpan }>()
  /** Since when each claim waits that was in a queue at the last reading. */
  #waiting = new Map<string, number>()
  readonly #gaps: [number, number][] = []
  #watchedSinceMs: number | undefined
  #lastMs: number | undefined
  #round = 0
  #count = 0
  #prunedMs = 0

  get watchedSinceMs(): number {
    return this.#watchedSinceMs ?? 0
  }

  gaps(): readonly (readonly [number, number])[] {
    return this.#gaps
  }

  of(name: string): Span[] {
    return (this.#spans.get(name) ?? []).map(({ round: _, seenMs: __, lastEndMs: ___, ttlMs: ____, ...span }) => span)
  }

  /** Adds a reading. `gapMs`: after a longer pause, what happened in it is unknown. */
  record(view: StoreView, gapMs: number): Happened {
    const { nowMs } = view.reading
    const happened = { granted: 0, released: 0, expired: 0, forceReleased: 0 }
    const gapFrom = this.#lastMs !== undefined && nowMs - this.#lastMs > gapMs ? this.#lastMs : undefined
    if (gapFrom !== undefined) this.#gaps.push([gapFrom, nowMs])
    // What began before the first reading, or in a gap, has not begun now.
    const isWatched = this.#lastMs !== undefined && gapFrom === undefined
    this.#watchedSinceMs ??= nowMs
    this.#round += 1
    for (const lock of view.locks.values()) {
      for (const lease of lock.leases) if (this.#see(lease, nowMs) && isWatched) happened.granted += 1
    }
    for (const [key, { name, span }] of this.#open) {
      if (span.round === this.#round) continue
      this.#open.delete(key)
      if (gapFrom === undefined) this.#end(span, view.locks.get(name), forcedReleasesOf(view, name), nowMs)
      else Object.assign(span, { to: gapFrom, end: 'unknown' })
      const { end } = span
      if (end === 'expired') happened.expired += 1
      else if (end === 'force-released') happened.forceReleased += 1
      else if (end !== 'unknown') happened.released += 1
    }
    this.#waiting = new Map(view.reading.waiters.map((waiter) => [keyOf(waiter), waiter.waitingSinceMs]))
    this.#lastMs = nowMs
    if (nowMs - this.#prunedMs > PRUNE_EVERY_MS || this.#count > MAX_SPANS) this.#prune(nowMs)
    return happened
  }

  /** True if the lease is new. */
  #see(lease: LeaseRecord, nowMs: number): boolean {
    const key = keyOf(lease)
    const open = this.#open.get(key)
    if (open !== undefined && open.span.token === lease.fencingToken) {
      open.span.round = this.#round
      setEnd(open.span, lease, nowMs)
      return false
    }
    const spans = this.#spans.get(lease.lockName) ?? []
    const last = spans.at(-1)
    // A reading in several pages can miss a lease that is there.
    if (last?.token === lease.fencingToken && last.holder === lease.holderId && last.token > 0) {
      delete last.to
      delete last.end
      last.round = this.#round
      setEnd(last, lease, nowMs)
      this.#open.set(key, { name: lease.lockName, span: last })
      return false
    }
    const span = this.#spanFrom(lease, nowMs)
    if (spans.length === 0) this.#spans.set(lease.lockName, spans)
    if (spans.length >= MAX_SPANS_OF_LOCK) {
      spans.shift()
      this.#count -= 1
    }
    spans.push(span)
    this.#count += 1
    this.#open.set(key, { name: lease.lockName, span })
    return true
  }

  #spanFrom(lease: LeaseRecord, nowMs: number): OpenSpan {
    const from = lease.acquiredAtMs > 0 ? lease.acquiredAtMs : nowMs
    const waitingSinceMs = this.#waiting.get(keyOf(lease))
    const span: OpenSpan = {
      holder: lease.holderId,
      token: lease.fencingToken,
      shared: lease.mode === 'shared',
      from,
      round: this.#round,
      seenMs: nowMs,
      ttlMs: Number.POSITIVE_INFINITY,
      ...(waitingSinceMs !== undefined && { waited: Math.max(0, from - waitingSinceMs) }),
    }
    setEnd(span, lease, nowMs)
    return span
  }

  #end(span: OpenSpan, lock: LockView | undefined, forcedReleases: readonly SeenForcedRelease[], nowMs: number): void {
    // A lease that was still there long after the record was not ended by that forced release.
    const sinceMs = Math.max(span.from, span.seenMs - FORCED_RELEASE_TAKES_MS)
    const forced = forcedReleases.find(({ token, atMs }) => token >= span.token && atMs >= sinceMs)
    if (forced !== undefined) {
      const { by, reason } = forced.record
      Object.assign(span, { end: 'force-released', to: Math.min(forced.atMs, nowMs), by, reason })
      return
    }
    const next = lock?.leases
      .filter(({ fencingToken, mode }) => fencingToken > span.token && (mode === 'exclusive' || !span.shared))
      .reduce<LeaseRecord | undefined>(
        (first, lease) => (first === undefined || lease.fencingToken < first.fencingToken ? lease : first),
        undefined,
      )
    const forcedBy = next?.metadata?.['forcedBy']
    if (typeof forcedBy === 'string') {
      Object.assign(span, { end: 'force-released', to: next?.acquiredAtMs ?? nowMs, by: forcedBy })
      return
    }
    const endedMs = Math.max(span.from, next === undefined ? nowMs : next.acquiredAtMs)
    const lastEndMs = span.lastEndMs ?? Number.POSITIVE_INFINITY
    if (lastEndMs > endedMs + CLOCK_ERROR_MS) {
      Object.assign(span, { to: endedMs, end: this.#endOfReleased(lock, next) })
      return
    }
    // A waiter would have followed a release at once. Without one, a release before that end looks the same as a loss,
    // but a lease that its holder keeps is renewed before half of its time is over.
    const isOverdue = lastEndMs - span.seenMs <= span.ttlMs / 2
    const isLost = isOverdue || (next !== undefined && this.#waiting.has(keyOf(next)))
    Object.assign(span, { to: Math.max(span.from, Math.min(lastEndMs, endedMs)), end: isLost ? 'expired' : 'unknown' })
  }

  #endOfReleased(lock: LockView | undefined, next: LeaseRecord | undefined): SpanEnd {
    if (next !== undefined) return this.#waiting.has(keyOf(next)) ? 'passed' : 'released'
    // The next holder of a permit is not always the one with the next token.
    return lock?.leases.some((lease) => this.#waiting.has(keyOf(lease))) ? 'passed' : 'released'
  }

  /** Forgets what is older than an hour, and then, if it is still too much, the oldest half. */
  #prune(nowMs: number): void {
    this.#prunedMs = nowMs
    let sinceMs = nowMs - HISTORY_MS
    for (let tries = 0; tries < 2; tries += 1) {
      for (const [name, spans] of this.#spans) {
        const kept = spans.filter(({ to }) => to === undefined || to > sinceMs)
        this.#count -= spans.length - kept.length
        if (kept.length === 0) this.#spans.delete(name)
        else if (kept.length < spans.length) this.#spans.set(name, kept)
      }
      while (this.#gaps[0] !== undefined && this.#gaps[0][1] <= sinceMs) this.#gaps.shift()
      if (this.#watchedSinceMs !== undefined) this.#watchedSinceMs = Math.max(this.#watchedSinceMs, sinceMs)
      if (this.#count <= MAX_SPANS) return
      const ends = [...this.#spans.values()].flatMap((spans) => spans.flatMap(({ to }) => to ?? []))
      sinceMs = ends.sort((a, b) => a - b)[ends.length >> 1] ?? nowMs
    }
  }
}

const forcedReleasesOf = ({ forcedReleases }: StoreView, name: string): readonly SeenForcedRelease[] =>
  forcedReleases.get(recordPrefix(name)) ?? []

const keyOf = ({ lockName, claimId }: LeaseRecord | WaiterRecord): string => `${lockName}\0${claimId}`

function setEnd(span: OpenSpan, { expiresAtMs }: LeaseRecord, nowMs: number): void {
  const { lastEndMs, seenMs } = span
  span.seenMs = nowMs
  if (expiresAtMs === undefined) delete span.lastEndMs
  else span.lastEndMs = expiresAtMs
  if (expiresAtMs === undefined || expiresAtMs === lastEndMs) return
  span.ttlMs = Math.min(span.ttlMs, expiresAtMs - (lastEndMs === undefined ? span.from : seenMs))
}

/** Beyond this the oldest half is forgotten. About 50 MB if each has a name of its own. */
const MAX_SPANS = 100_000
const MAX_SPANS_OF_LOCK = 500
const PRUNE_EVERY_MS = 60_000
/** How far our idea of the store's clock may be off. A release this shortly before the end counts as an expiry. */
const CLOCK_ERROR_MS = 50
/** How long after its record a forced release may take. */
const FORCED_RELEASE_TAKES_MS = CALL_TIMEOUT_MS + FORCE_TIMEOUT_MS
