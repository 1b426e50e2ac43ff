import type { Agenda, AgendaEntry, Task } from './agenda.ts'
import { backoffMs } from './backoff.ts'
import type { Clock } from './clock.ts'
import { circleKey, circleToLeave, deadlockError, type Seen } from './deadlock.ts'
import { HoldfastError } from './errors.ts'
import { DEADLOCK_PAGE_SIZE, DEADLOCK_PAGES } from './limits.ts'
import type { Link } from './link.ts'
import type { Random } from './random.ts'
import type { PendingClaim } from './wait.ts'

export interface DeadlockWatchParts {
  readonly clock: Clock
  readonly random: Random
  readonly agenda: Agenda
  readonly link: Link
}

/**
 * Looks whether the claims of an instance that have waited for some time wait in a circle, and ends the one whose turn it is to give up.
 *
 * A look reads the store's leases and waiters, a bounded number of pages of them. All claims of the instance that are due share it, there is one at a time, and each
 * claim comes back later and later: a claim that waits long costs next to nothing.
 */
export class DeadlockWatch {
  readonly #parts: DeadlockWatchParts
  readonly #afterMs: number
  readonly #watched = new Map<PendingClaim, WatchedClaim>()
  #looking: Promise<Seen> | undefined

  constructor(parts: DeadlockWatchParts, afterMs: number) {
    this.#parts = parts
    this.#afterMs = afterMs
  }

  watch(pending: PendingClaim): void {
    const watched = new WatchedClaim(this.#parts, pending, () => this.#look())
    this.#watched.set(pending, watched)
    watched.lookIn(this.#afterMs)
  }

  forget(pending: PendingClaim): void {
    const watched = this.#watched.get(pending)
    if (watched === undefined) return
    this.#watched.delete(pending)
    watched.end()
  }

  #look(): Promise<Seen> {
    this.#looking ??= readStore(this.#parts.link).finally(() => {
      this.#looking = undefined
    })
    return this.#looking
  }
}

class WatchedClaim implements Task {
  readonly keepsAlive = false
  onAgenda: AgendaEntry | undefined
  readonly #parts: DeadlockWatchParts
  readonly #pending: PendingClaim
  readonly #look: () => Promise<Seen>
  #dueMs = Number.POSITIVE_INFINITY
  #tries = 0
  /** What the look before has found. */
  #found: string | undefined
  #ended = false

  constructor(parts: DeadlockWatchParts, pending: PendingClaim, look: () => Promise<Seen>) {
    this.#parts = parts
    this.#pending = pending
    this.#look = look
  }

  lookIn(ms: number): void {
    if (this.#ended) return
    const { clock, agenda } = this.#parts
    // On a grid, a little late, so that claims that are due at about the same time look together.
    this.#dueMs = agenda.round(clock.now().monotonicMs + ms + GRID_MS, GRID_MS)
    agenda.set(this, this.#dueMs)
  }

  due(): void {
    const { agenda, clock } = this.#parts
    if (clock.now().monotonicMs < this.#dueMs) {
      agenda.set(this, this.#dueMs)
      return
    }
    this.#dueMs = Number.POSITIVE_INFINITY
    this.#look().then(
      (seen) => this.#judge(seen),
      (error: unknown) => {
        // A store that does not answer is the claim's own to tell of.
        if (!(error instanceof HoldfastError)) throw error
        this.#lookLater()
      },
    )
  }

  end(): void {
    this.#ended = true
    this.#parts.agenda.clear(this)
  }

  #judge(seen: Seen): void {
    if (this.#ended) return
    const circle = circleToLeave(seen, this.#pending.claim.claimId)
    if (circle === undefined) {
      this.#found = undefined
      this.#lookLater()
      return
    }
    // Pages are read one after the other, so a circle may be put together from different moments. What is seen twice was there in between, all of it at once.
    const found = circleKey(circle)
    if (found === this.#found) {
      this.#pending.giveUp(deadlockError(circle))
      return
    }
    this.#found = found
    this.lookIn(CONFIRM_MS)
  }

  #lookLater(): void {
    this.#tries += 1
    this.lookIn(backoffMs(AGAIN, this.#tries, this.#parts.random))
  }
}

async function readStore(link: Link): Promise<Seen> {
  const leases = []
  const waiters = []
  let after: string | undefined
  for (let pages = 0; pages < DEADLOCK_PAGES; pages += 1) {
    const page = await link.inspect({ pageSize: DEADLOCK_PAGE_SIZE, ...(after !== undefined && { after }) })
    leases.push(...page.leases)
    waiters.push(...page.waiters)
    after = page.next
    if (after === undefined) break
  }
  return { leases, waiters }
}

const GRID_MS = 100
const CONFIRM_MS = 100
const AGAIN = { firstMs: 1_000, mostMs: 30_000 }
