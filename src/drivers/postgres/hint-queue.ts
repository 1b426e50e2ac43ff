import type { DriverListener, Grant } from '../../core/driver.ts'
import { MAX_LIST } from '../../core/limits.ts'
import { systemClock } from '../../core/time/clock.ts'
import { sleep } from '../../core/time/native-time.ts'

export interface HintQueueParts {
  readonly listeners: ReadonlySet<DriverListener>
  /** Asks the store which of these claims hold their lock. Takes lock names and returns grants, both by claim id. */
  confirm(claims: ReadonlyMap<string, string>): Promise<ReadonlyMap<string, Grant>>
}

export interface Hint {
  readonly kind: 'granted' | 'wake'
  readonly lockName: string
}

/**
 * Notifications that have not been passed on yet. They prove nothing, because every role that can connect can send to
 * every channel. So the store is asked about each grant. One that it confirms is passed on as the store states it. One
 * that it does not confirm only wakes the waiter.
 *
 * One query is in flight at a time, about all hints that came meanwhile. Rounds that confirm nothing have a bounded
 * rate, so that a flood of forged notifications costs a bounded number of queries. Hints that come faster are handled
 * together, and a real one among them is late by at most one round.
 */
export class HintQueue {
  readonly #parts: HintQueueParts
  readonly #hints = new Map<string, Hint>()
  #running = false
  /** A token bucket: how many more rounds may confirm nothing. */
  #emptyRounds = MAX_EMPTY_ROUNDS
  #refilledMs = systemClock.now().monotonicMs

  constructor(parts: HintQueueParts) {
    this.#parts = parts
  }

  add(claimId: string, hint: Hint): void {
    if (this.#hints.size >= MAX_HINTS || !this.#concernsAnyListener(claimId)) return
    // Every other hint includes a wake-up.
    if (hint.kind !== 'wake' || !this.#hints.has(claimId)) this.#hints.set(claimId, hint)
    if (!this.#running) void this.#run()
  }

  /** Drops the hints that have not been passed on yet. */
  clear(): void {
    this.#hints.clear()
  }

  async #run(): Promise<void> {
    this.#running = true
    while (this.#hints.size > 0) {
      if (!this.#mayBeEmpty()) await sleep(EMPTY_ROUND_MS, undefined, { ref: false })
      await this.#round([...this.#hints].slice(0, MAX_LIST))
    }
    this.#running = false
  }

  async #round(hints: readonly (readonly [string, Hint])[]): Promise<void> {
    for (const [claimId] of hints) this.#hints.delete(claimId)
    const unconfirmed = hints.filter(([, { kind }]) => kind === 'granted')
    const claims = new Map(unconfirmed.map(([claimId, { lockName }]) => [claimId, lockName]))
    // If the query fails, the waiters are woken and ask for themselves, with the deadlines and retries of every claim.
    const grants = claims.size === 0 ? NONE : await this.#parts.confirm(claims).catch(() => NONE)
    for (const [claimId, { lockName }] of hints) {
      const grant = grants.get(claimId)
      for (const listener of [...this.#parts.listeners]) {
        if (grant !== undefined) listener.granted(claimId, grant)
        else listener.wake(lockName, claimId)
      }
    }
    if (grants.size < hints.length) this.#emptyRounds -= 1
  }

  #concernsAnyListener(claimId: string): boolean {
    for (const listener of this.#parts.listeners) if (listener.concerns?.(claimId) ?? true) return true
    return false
  }

  #mayBeEmpty(): boolean {
    const nowMs = systemClock.now().monotonicMs
    this.#emptyRounds = Math.min(MAX_EMPTY_ROUNDS, this.#emptyRounds + (nowMs - this.#refilledMs) / EMPTY_ROUND_MS)
    this.#refilledMs = nowMs
    return this.#emptyRounds >= 1
  }
}

const NONE: ReadonlyMap<string, Grant> = new Map()

/** The claims that may have a hint between two rounds. More are dropped: the slow poll of each claim covers them. */
const MAX_HINTS = 10_000
/** How many rounds in a row may confirm nothing, and after that one in so many milliseconds. */
const MAX_EMPTY_ROUNDS = 20
const EMPTY_ROUND_MS = 50
