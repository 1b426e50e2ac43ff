import type { Lease } from 'holdfast'
import { check } from '../check.ts'
import { type LeaseHistory, nowMs } from '../history.ts'

/** What a lease and a term of an election have in common. */
export type Held = Pick<Lease, 'fencingToken' | 'held' | 'signal'>

export interface Granted {
  readonly client: string
  readonly name: string
  readonly lease: Held
  readonly askedAt: number
  /** A reader has no limit. Absent: exclusive. */
  readonly shared?: { readonly limit: number }
}

interface Watched extends Granted {
  readonly knownAt: number
  heldUntil?: number
  wasLost: boolean
  /** The holder has given it up, or it was taken by force. */
  isOver: boolean
  lostAt?: number
}

/** Sees what the clients of one run believe, and collects violations. All clients live in this process. */
export class Watch {
  readonly violations: string[] = []
  readonly tooLate: string[] = []
  readonly #all: Watched[] = []
  readonly #takenUntil = new Map<string, number>()
  readonly #mayBeHeldAt: () => number
  readonly #timer: NodeJS.Timeout

  /** `mayBeHeldAt`: when the store may last have held a lock that no client relies on. */
  constructor(mayBeHeldAt: () => number = () => 0) {
    this.#mayBeHeldAt = mayBeHeldAt
    this.#timer = setInterval(() => this.look(), LOOK_EVERY_MS)
  }

  get grants(): number {
    return this.#all.length
  }

  granted(granted: Granted): void {
    this.#all.push({ ...granted, knownAt: nowMs(), wasLost: false, isOver: false })
    this.look()
  }

  /** Must be called before a release is sent. */
  ended(lease: Held): void {
    this.look()
    for (const each of this.#all) if (each.lease === lease) each.isOver = true
  }

  /**
   * A client takes this name by force. Its leases may end in the store before their holders can know, and the new
   * holder may hold it for this long, if its call fails.
   */
  taken(name: string, forMs: number): void {
    for (const each of this.#all) if (each.name === name) each.isOver = true
    this.#takenUntil.set(name, nowMs() + forMs)
  }

  /** The new holder has released it. */
  freed(name: string): void {
    this.#takenUntil.delete(name)
  }

  /** Its holder relies on it, and nothing else may end it in the store. */
  isRelied(lease: Held): boolean {
    return lease.held && this.#all.some((each) => each.lease === lease && !each.isOver)
  }

  tokensOf(name: string): number[] {
    return this.#all.filter((each) => each.name === name).map(({ lease }) => lease.fencingToken)
  }

  /** When a client last held this name, or may have held it. */
  lastHeldAt(name: string): number {
    this.look()
    const takenUntil = Math.min(this.#takenUntil.get(name) ?? 0, nowMs())
    const leases = this.#all.filter((each) => each.name === name)
    return Math.max(takenUntil, this.#mayBeHeldAt(), ...leases.map(({ heldUntil = 0 }) => heldUntil))
  }

  violation(text: string): void {
    if (!this.violations.includes(text)) this.violations.push(text)
  }

  late(text: string): void {
    if (!this.tooLate.includes(text)) this.tooLate.push(text)
  }

  /** Checks all leases in one step of the event loop, so that two leases are compared at the same moment. */
  look(): void {
    const atMs = nowMs()
    const held = this.#all.filter((each) => this.#isHeld(each, atMs) && !each.isOver)
    for (const [at, each] of held.entries()) {
      const others = held.slice(at + 1).filter(({ name }) => name === each.name)
      for (const other of others) {
        if (each.shared && other.shared) continue
        this.violation(`two holders of ${each.name}: ${textOf(each)} and ${textOf(other)}`)
      }
      const sharers = [each, ...others].filter(({ shared }) => shared !== undefined)
      if (each.shared && sharers.length > each.shared.limit) {
        this.violation(`${sharers.length} holders of ${each.name}, limit ${each.shared.limit}`)
      }
    }
  }

  /** Judges the tokens, and stops. */
  end(): void {
    this.look()
    clearInterval(this.#timer)
    for (const each of this.#all) {
      if (each.lease.held) this.late(`${textOf(each)} is still held at the end`)
    }
    for (const { before, after } of check(this.#all.map(historyOf)).falling) {
      this.violation(
        `falling token of ${after.name}: ${after.token} (${after.id}) after ${before.token} (${before.id})`,
      )
    }
  }

  #isHeld(each: Watched, atMs: number): boolean {
    const { lease } = each
    // Before `held`: the lease may end between the two.
    const { aborted } = lease.signal
    if (!lease.held) {
      each.wasLost = true
      each.lostAt ??= atMs
      if (!each.isOver && !lease.signal.aborted && atMs - each.lostAt > SIGNAL_WITHIN_MS) {
        this.late(`${textOf(each)} was lost without a signal`)
      }
      return false
    }
    if (each.wasLost || aborted) this.violation(`${textOf(each)} is held again after its loss`)
    each.heldUntil = atMs
    return true
  }
}

const LOOK_EVERY_MS = 5
/** A signal that is due comes with the next turn of the event loop. A busy machine may take this long for it. */
const SIGNAL_WITHIN_MS = 1_000

const textOf = ({ client, lease }: Watched): string => `${client} with token ${lease.fencingToken}`

function historyOf({ client, name, lease, askedAt, knownAt, heldUntil, shared }: Watched): LeaseHistory {
  const token = lease.fencingToken
  const times = { askedAt, knownAt, ...(heldUntil !== undefined && { heldUntil }) }
  return { id: client, name, token, ttlMs: 0, end: 'lost', ...times, ...(shared && { mode: 'shared' }) }
}
