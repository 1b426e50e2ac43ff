import type { DriverListener, Grant } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { MAX_LIST } from '../../core/limits.ts'
import { systemClock } from '../../core/time/clock.ts'
import { sleep } from '../../core/time/native-time.ts'

export interface HintsParts {
  readonly listeners: ReadonlySet<DriverListener>
  /** Asks the store which of these claims hold their lock. Lock names by claim id in, grants by claim id out. */
  confirm(claims: ReadonlyMap<string, string>): Promise<ReadonlyMap<string, Grant>>
}

export type Hint = 'granted' | 'wake' | 'lost'

interface Heard {
  readonly hint: Hint
  /** The lock name. Of a loss: who is said to have stolen it. */
  readonly about: string
}

/**
 * What was heard, and proves nothing: every role that can connect can send to every channel. A grant is passed on in
 * the store's own words; one that the store does not confirm is no more than a reason to ask again, for a claim that
 * waits here. A loss is a reason for the holder to ask.
 *
 * The store is asked one question at a time, about all that was heard meanwhile. Rounds that bring no grant have a
 * bounded rate, so that a flood of forged messages costs a bounded number of queries. Hints that come faster are put
 * together, and real ones among them are late by a round at most.
 */
export class Hints {
  readonly #parts: HintsParts
  readonly #heard = new Map<string, Heard>()
  #running = false
  #emptyRounds = EMPTY_ROUNDS
  #countedMs = systemClock.now().monotonicMs

  constructor(parts: HintsParts) {
    this.#parts = parts
  }

  add(claimId: string, { hint, about }: Heard): void {
    if (this.#heard.size >= MAX_HEARD || !this.#concernsAnybody(claimId)) return
    // What a mere wake-up would add to it is said by any other hint, too.
    if (hint !== 'wake' || !this.#heard.has(claimId)) this.#heard.set(claimId, { hint, about })
    if (!this.#running) void this.#run()
  }

  /** Forgets what was heard and not passed on yet. */
  clear(): void {
    this.#heard.clear()
  }

  async #run(): Promise<void> {
    this.#running = true
    while (this.#heard.size > 0) {
      if (!this.#mayBringNothing()) await sleep(EMPTY_ROUND_MS, undefined, { ref: false })
      await this.#round([...this.#heard].slice(0, MAX_LIST))
    }
    this.#running = false
  }

  async #round(heard: readonly (readonly [string, Heard])[]): Promise<void> {
    for (const [claimId] of heard) this.#heard.delete(claimId)
    const told = heard.filter(([, { hint }]) => hint === 'granted')
    const claims = new Map(told.map(([claimId, { about }]) => [claimId, about]))
    // If the store cannot be asked just now, whoever waits asks it again, with the deadlines and retries of every
    // claim.
    const grants = claims.size === 0 ? NONE : await this.#parts.confirm(claims).catch(() => NONE)
    for (const [claimId, { hint, about }] of heard) {
      const grant = grants.get(claimId)
      for (const listener of [...this.#parts.listeners]) {
        if (grant !== undefined) listener.granted(claimId, grant)
        else if (hint === 'lost') listener.lost(claimId, new StoreError(`it was stolen by ${about}`))
        else listener.wake(about, claimId)
      }
    }
    if (grants.size < heard.length) this.#emptyRounds -= 1
  }

  #concernsAnybody(claimId: string): boolean {
    for (const listener of this.#parts.listeners) if (listener.concerns?.(claimId) ?? true) return true
    return false
  }

  #mayBringNothing(): boolean {
    const nowMs = systemClock.now().monotonicMs
    this.#emptyRounds = Math.min(EMPTY_ROUNDS, this.#emptyRounds + (nowMs - this.#countedMs) / EMPTY_ROUND_MS)
    this.#countedMs = nowMs
    return this.#emptyRounds >= 1
  }
}

const NONE: ReadonlyMap<string, Grant> = new Map()

/** How many claims may be heard of between two rounds. The slow poll of every claim stands behind what is dropped. */
const MAX_HEARD = 10_000
/** How many rounds in a row may bring nothing, and how often one may after that. */
const EMPTY_ROUNDS = 20
const EMPTY_ROUND_MS = 50
