import { HoldfastError, StoreError } from '../errors.ts'
import { safeCause } from '../foreign-errors.ts'
import { MAX_DEADLOCK_REQUESTS } from '../limits.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { OpenedStore, StoreClient, TrackedClaim } from '../store/store-client.ts'
import { backoffMs } from '../time/backoff.ts'
import type { Clock } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { Scheduler, SchedulerEntry, Task } from '../time/scheduler.ts'
import { type Cycle, cycleKey, deadlockError, findCycles, waitForGraph } from './find.ts'
import { readSnapshot } from './snapshot.ts'
import { WaitMarker, type WaitMarkerParts } from './wait-marker.ts'

export interface DeadlockWatchParts {
  readonly clock: Clock
  readonly random: Random
  readonly scheduler: Scheduler
  /** Opens a client that sends nothing but wait markers. It is opened with the first claim that is watched. */
  readonly openStore: () => OpenedStore
  readonly inFlight: InFlight
}

/** A claim that waits, as the watch sees it. */
export interface WaitingClaim {
  readonly claim: TrackedClaim
  readonly request: { readonly isAwaited?: (() => boolean) | undefined }
  giveUp(error: HoldfastError): void
}

/**
 * Searches for deadlocks among the claims of an instance that have waited for some time, and ends each claim that is
 * the victim of a cycle.
 *
 * A claim writes a wait marker when it has waited for half of that time. So a search, which follows the markers, finds
 * those of all claims that have waited longer. A search reads a bounded number of records. Only one runs at a time, all
 * claims of the instance share it, and each claim searches at growing intervals: a claim that waits long costs almost
 * nothing, and a thousand claims cost no more than two searches a second.
 */
export class DeadlockWatch {
  readonly #parts: DeadlockWatchParts
  readonly #afterMs: number
  #opened: OpenedStore | undefined
  readonly #watched = new Map<WaitingClaim, WatchedClaim>()
  #lastSearch: Search | undefined
  #refused = false

  constructor(parts: DeadlockWatchParts, afterMs: number) {
    this.#parts = parts
    this.#afterMs = afterMs
  }

  watch(pending: WaitingClaim): void {
    if (this.#refused) return
    const search = (sinceMs?: number): Promise<CyclesByVictim> => this.#search(sinceMs)
    this.#opened ??= this.#parts.openStore()
    const parts = {
      ...this.#parts,
      store: this.#opened.store,
      search,
      onFailure: (error: unknown) => this.#failed(error),
    }
    const watched = new WatchedClaim(parts, pending, this.#afterMs)
    this.#watched.set(pending, watched)
    watched.begin()
  }

  forget(pending: WaitingClaim): void {
    const watched = this.#watched.get(pending)
    if (watched === undefined) return
    this.#watched.delete(pending)
    if (this.#watched.size === 0) this.#lastSearch = undefined
    watched.end()
  }

  async close(): Promise<void> {
    await this.#opened?.close()
  }

  /** See `OpenedStore.giveUp`. */
  giveUp(error: HoldfastError): void {
    this.#opened?.giveUp(error)
  }

  /**
   * A store that does not answer is not reported here: the claim itself reports it. If the store rejects the markers of
   * this client for good, the watch stops.
   */
  #failed(error: unknown): void {
    // Any other error is a bug in this folder, which must not end the process.
    if (!(error instanceof HoldfastError)) process.emitWarning(safeCause(error))
    if (!(error instanceof StoreError) || error.retryable || this.#refused) return
    this.#refused = true
    for (const pending of [...this.#watched.keys()]) this.forget(pending)
    process.emitWarning('this instance does not look for deadlocks: the store rejects its wait markers (waits:*)', {
      type: 'HoldfastWarning',
      code: 'HOLDFAST_DEADLOCKS_OFF',
      detail: `${error.message}. Give this client permission for these names, or set deadlockAfterSeconds to false.`,
    })
  }

  /**
   * Returns the result of a search that began after `sinceMs`, and starts one if there is none. Without `sinceMs`, the
   * search is recent enough to find every cycle of which a claim that is due can be the victim.
   */
  #search(sinceMs?: number): Promise<CyclesByVictim> {
    const nowMs = this.#parts.clock.now().monotonicMs
    // The victim is the youngest claim of its cycle, and has waited for `#afterMs`. So half of that time ago, all
    // claims of the cycle were already waiting.
    const earliestMs = sinceMs ?? nowMs - Math.min(this.#afterMs / 2, MAX_AGE_MS)
    const last = this.#lastSearch
    if (last !== undefined && (last.inFlight || last.beganMs > earliestMs)) return last.cycles
    const cycles = searchCycles((this.#opened as OpenedStore).store, this.#nextNames())
    const search: Search = { beganMs: nowMs, inFlight: true, cycles }
    const settled = (): void => {
      search.inFlight = false
    }
    search.cycles.then(settled, settled)
    this.#lastSearch = search
    return search.cycles
  }

  /**
   * The lock names that claims of this instance wait for. If a search cannot cover all of them, those that the last
   * search left out come first.
   */
  #nextNames(): string[] {
    const names = new Set<string>()
    for (const [pending, watched] of [...this.#watched]) {
      if (names.size === MAX_NAMES) break
      names.add(pending.claim.lockName)
      this.#watched.delete(pending)
      this.#watched.set(pending, watched)
    }
    return [...names]
  }
}

/** By the claim id of the victim. */
type CyclesByVictim = ReadonlyMap<string, Cycle>

interface Search {
  readonly beganMs: number
  inFlight: boolean
  readonly cycles: Promise<CyclesByVictim>
}

interface WatchedClaimParts extends DeadlockWatchParts, WaitMarkerParts {
  search(sinceMs?: number): Promise<CyclesByVictim>
}

class WatchedClaim implements Task {
  readonly keepsAlive = false
  schedulerEntry: SchedulerEntry | undefined
  readonly #parts: WatchedClaimParts
  readonly #pending: WaitingClaim
  readonly #afterMs: number
  #marker: WaitMarker | undefined
  #dueMs = Number.POSITIVE_INFINITY
  #tries = 0
  /** The cycle that the last search found, and when its result was known. */
  #unconfirmed: { readonly cycle: string; readonly atMs: number } | undefined
  #ended = false

  constructor(parts: WatchedClaimParts, pending: WaitingClaim, afterMs: number) {
    this.#parts = parts
    this.#pending = pending
    this.#afterMs = afterMs
  }

  begin(): void {
    const { clock, scheduler } = this.#parts
    if (!this.#usesMarkers) {
      this.#searchIn(this.#afterMs)
      return
    }
    this.#dueMs = clock.now().monotonicMs + this.#afterMs / 2
    scheduler.set(this, this.#dueMs)
  }

  /** A session store shows all waiters, so that no markers are needed. */
  get #usesMarkers(): boolean {
    return this.#parts.store.driver.capabilities.queue
  }

  #searchIn(ms: number): void {
    if (this.#ended) return
    const { clock, scheduler } = this.#parts
    // Rounded up to a grid, so that claims that are due at about the same time share a search.
    this.#dueMs = scheduler.round(clock.now().monotonicMs + ms + GRID_MS, GRID_MS)
    scheduler.set(this, this.#dueMs)
  }

  due(): void {
    const { scheduler, clock } = this.#parts
    if (clock.now().monotonicMs < this.#dueMs) {
      scheduler.set(this, this.#dueMs)
      return
    }
    this.#dueMs = Number.POSITIVE_INFINITY
    // The callback around it may end although the claim waits. Without a marker, no search comes this way.
    if (this.#pending.request.isAwaited?.() === false) {
      this.#searchIn(this.#afterMs)
      return
    }
    if (this.#usesMarkers) {
      const isFirst = this.#marker === undefined
      this.#marker ??= new WaitMarker(this.#parts, this.#pending.claim)
      if (isFirst || this.#tries > 0) this.#marker.write()
      if (isFirst) {
        this.#searchIn(this.#afterMs / 2)
        return
      }
    }
    void this.#search()
  }

  end(): void {
    this.#ended = true
    this.#parts.scheduler.clear(this)
    this.#marker?.end()
  }

  async #search(): Promise<void> {
    try {
      this.#decide(await this.#parts.search(this.#unconfirmed?.atMs))
    } catch (error) {
      this.#parts.onFailure(error)
      this.#searchLater()
    }
  }

  #decide(cycles: CyclesByVictim): void {
    if (this.#ended) return
    const cycle = cycles.get(this.#pending.claim.claimId)
    if (cycle === undefined) {
      this.#unconfirmed = undefined
      this.#searchLater()
      return
    }
    // Pages are read one after the other, so a cycle may be made of records from different moments. If a second search
    // finds the same cycle, all of it existed at once in between.
    const key = cycleKey(cycle)
    if (key === this.#unconfirmed?.cycle) {
      this.#pending.giveUp(deadlockError(cycle))
      return
    }
    this.#unconfirmed = { cycle: key, atMs: this.#parts.clock.now().monotonicMs }
    this.#searchIn(CONFIRM_MS)
  }

  #searchLater(): void {
    this.#tries += 1
    this.#searchIn(backoffMs(RETRY, this.#tries, this.#parts.random))
  }
}

/** All claims of an instance share the result. */
async function searchCycles(store: StoreClient, lockNames: readonly string[]): Promise<CyclesByVictim> {
  return findCycles(waitForGraph(await readSnapshot(store, lockNames)))
}

/** How many lock names a search starts with: each of them takes another request for its holder. */
const MAX_NAMES = MAX_DEADLOCK_REQUESTS / 2
/** Claims share a search that began at most this long ago. */
const MAX_AGE_MS = 500
const GRID_MS = 100
/** After how long a cycle is searched for a second time. */
const CONFIRM_MS = 100
const RETRY = { firstMs: 1_000, maxMs: 30_000 }
