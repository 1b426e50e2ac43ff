import type { PendingClaim } from '../claim/pending-claim.ts'
import { HoldfastError, StoreError } from '../errors.ts'
import { DEADLOCK_QUESTIONS } from '../limits.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient } from '../store/store-client.ts'
import { backoffMs } from '../time/backoff.ts'
import type { Clock } from '../time/clock.ts'
import type { Random } from '../time/random.ts'
import type { Scheduler, SchedulerEntry, Task } from '../time/scheduler.ts'
import { type Blocked, blockedClaims, cycleKey, cyclesToLeave, deadlockError } from './find.ts'
import { lookAround } from './snapshot.ts'
import { Note, type NoteParts } from './waiting-notes.ts'

export interface DeadlockWatchParts {
  readonly clock: Clock
  readonly random: Random
  readonly scheduler: Scheduler
  readonly store: StoreClient
  readonly inFlight: InFlight
}

/**
 * Looks whether the claims of an instance that have waited for some time wait in a cycle, and ends the one whose turn it is to give up.
 *
 * A claim leaves a note of what it waits for when half of that time is over, so that whoever looks finds those of all who wait longer.
 * A look follows the notes, a bounded number of them. There is one at a time, all claims of the instance share it, and each claim comes
 * back later and later: a claim that waits long costs next to nothing, and a thousand cost no more than two looks a second.
 */
export class DeadlockWatch {
  readonly #parts: DeadlockWatchParts
  readonly #afterMs: number
  readonly #watched = new Map<PendingClaim, WatchedClaim>()
  #last: Look | undefined
  #refused = false

  /** The link is the watch's own: nothing else shares a list with its notes. It is closed with the watch. */
  constructor(parts: DeadlockWatchParts, afterMs: number) {
    this.#parts = parts
    this.#afterMs = afterMs
  }

  watch(pending: PendingClaim): void {
    if (this.#refused) return
    const look = (afterMs?: number): Promise<Circles> => this.#look(afterMs)
    const parts = { ...this.#parts, look, onFailure: (error: unknown) => this.#failed(error) }
    const watched = new WatchedClaim(parts, pending, this.#afterMs)
    this.#watched.set(pending, watched)
    watched.begin()
  }

  forget(pending: PendingClaim): void {
    const watched = this.#watched.get(pending)
    if (watched === undefined) return
    this.#watched.delete(pending)
    if (this.#watched.size === 0) this.#last = undefined
    watched.end()
  }

  close(): Promise<void> {
    return this.#parts.store.close()
  }

  /** As `Link.giveUp`. */
  giveUp(error: HoldfastError): void {
    this.#parts.store.failAll(error)
  }

  /** A store that does not answer is the claim's own to tell of. One that denies notes to this client is not asked again. */
  #failed(error: unknown): void {
    // Anything else is a fault in here, and no reason to end the process.
    if (!(error instanceof HoldfastError)) process.emitWarning(error instanceof Error ? error : String(error))
    if (!(error instanceof StoreError) || error.retryable || this.#refused) return
    this.#refused = true
    for (const pending of [...this.#watched.keys()]) this.forget(pending)
    process.emitWarning('this instance does not look for deadlocks: the store refuses its notes (waits:*)', {
      type: 'HoldfastWarning',
      code: 'HOLDFAST_DEADLOCKS_OFF',
      detail: `${error.message}. Give this client the right to these names, or set deadlockAfterSeconds to false.`,
    })
  }

  /** One that began after this moment, or, if nothing is said, lately enough to show all that a claim that is due can be in. */
  #look(afterMs?: number): Promise<Circles> {
    const nowMs = this.#parts.clock.now().monotonicMs
    // The youngest of a cycle has waited for `afterMs`, so half of that ago all of them did.
    const leastMs = afterMs ?? nowMs - Math.min(this.#afterMs / 2, FRESH_MS)
    const last = this.#last
    if (last !== undefined && (last.inFlight || last.beganMs > leastMs)) return last.cycles
    const cycles = circlesAround(this.#parts.store, this.#nextNames())
    const look: Look = { beganMs: nowMs, inFlight: true, cycles }
    const over = (): void => {
      look.inFlight = false
    }
    look.cycles.then(over, over)
    this.#last = look
    return look.cycles
  }

  /** What claims wait for here. Where there are more names than a look has questions for, those come first that were not asked for last time. */
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

/** By the claim that has to leave it. */
type Circles = ReadonlyMap<string, readonly Blocked[]>

interface Look {
  readonly beganMs: number
  inFlight: boolean
  readonly cycles: Promise<Circles>
}

interface WatchedParts extends DeadlockWatchParts, NoteParts {
  look(afterMs?: number): Promise<Circles>
}

class WatchedClaim implements Task {
  readonly keepsAlive = false
  schedulerEntry: SchedulerEntry | undefined
  readonly #parts: WatchedParts
  readonly #pending: PendingClaim
  readonly #afterMs: number
  #note: Note | undefined
  #dueMs = Number.POSITIVE_INFINITY
  #tries = 0
  /** What the look before has found, and when that was over. */
  #found: { readonly cycle: string; readonly atMs: number } | undefined
  #ended = false

  constructor(parts: WatchedParts, pending: PendingClaim, afterMs: number) {
    this.#parts = parts
    this.#pending = pending
    this.#afterMs = afterMs
  }

  begin(): void {
    const { clock, scheduler, store } = this.#parts
    if (!store.driver.capabilities.queue) {
      this.lookIn(this.#afterMs)
      return
    }
    this.#dueMs = clock.now().monotonicMs + this.#afterMs / 2
    scheduler.set(this, this.#dueMs)
  }

  lookIn(ms: number): void {
    if (this.#ended) return
    const { clock, scheduler } = this.#parts
    // On a grid, a little late, so that claims that are due at about the same time look together.
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
    if (this.#parts.store.driver.capabilities.queue) {
      const isFirst = this.#note === undefined
      this.#note ??= new Note(this.#parts, this.#pending.claim)
      if (isFirst || this.#tries > 0) this.#note.write()
      if (isFirst) {
        this.lookIn(this.#afterMs / 2)
        return
      }
    }
    void this.#lookAndJudge()
  }

  end(): void {
    this.#ended = true
    this.#parts.scheduler.clear(this)
    this.#note?.end()
  }

  async #lookAndJudge(): Promise<void> {
    try {
      this.#judge(await this.#parts.look(this.#found?.atMs))
    } catch (error) {
      this.#parts.onFailure(error)
      this.#lookLater()
    }
  }

  #judge(cycles: Circles): void {
    if (this.#ended) return
    const cycle = cycles.get(this.#pending.claim.claimId)
    if (cycle === undefined) {
      this.#found = undefined
      this.#lookLater()
      return
    }
    // Pages are read one after the other, so a cycle may be put together from different moments. What is seen twice was there in between, all of it at once.
    const key = cycleKey(cycle)
    if (key === this.#found?.cycle) {
      this.#pending.giveUp(deadlockError(cycle))
      return
    }
    this.#found = { cycle: key, atMs: this.#parts.clock.now().monotonicMs }
    this.lookIn(CONFIRM_MS)
  }

  #lookLater(): void {
    this.#tries += 1
    this.lookIn(backoffMs(AGAIN, this.#tries, this.#parts.random))
  }
}

/** What it has found is worked out once, for all who look. */
async function circlesAround(store: StoreClient, lockNames: readonly string[]): Promise<Circles> {
  return cyclesToLeave(blockedClaims(await lookAround(store, lockNames)))
}

/** The names that a look begins with: each of them costs another question for its holder. */
const MAX_NAMES = DEADLOCK_QUESTIONS / 2
/** Looks that are not older than this are shared. */
const FRESH_MS = 500
const GRID_MS = 100
const CONFIRM_MS = 100
const AGAIN = { firstMs: 1_000, maxMs: 30_000 }
