import { PERMITS } from './program.ts'
import {
  type Granted,
  keyOf,
  type ModelOptions,
  type Ref,
  type Rule,
  type StoredLease,
  short,
  trusted,
  type Use,
  type Violation,
} from './rules.ts'

/**
 * Says who may be inside. It sees what programs do and what the store answers, and knows nothing of the code between.
 */
export class Model {
  readonly violations: Violation[] = []
  readonly trace: string[] = []
  readonly #options: ModelOptions
  readonly #leases = new Map<string, StoredLease>()
  readonly #tokens = new Map<string, number>()
  /** Uses that have not ended. */
  readonly #uses = new Set<Use>()
  /** Their functions have ended, and the calls around those have not settled. */
  readonly #ending = new Set<Use>()
  readonly #leaseOf = new Map<Use, StoredLease>()
  readonly #excuses = new Set<(use: Use) => boolean>()
  /** Forced releases in flight on each name. */
  readonly #forcing = new Map<string, number>()

  constructor(options: ModelOptions) {
    this.#options = options
  }

  violate(rule: Rule, text: string): void {
    this.note(() => `VIOLATION: ${rule}: ${text}`)
    this.violations.push({ rule, text })
  }

  note(text: () => string): void {
    this.trace.push(`${this.#nowMs.toFixed(0).padStart(6)} ms  ${text()}`)
  }

  get #nowMs(): number {
    return this.#options.nowMs()
  }

  // The store.

  /** The largest token of a name now. A grant that is asked for after this has a larger one. */
  lastToken(lockName: string): number {
    return this.#tokens.get(lockName) ?? 0
  }

  granted(grant: Granted): void {
    const { lockName, fencingToken, claimId, exclusive, ttlMs, sentMs, after } = grant
    const known = this.#leases.get(keyOf(grant))
    if (known?.claimId === claimId) {
      known.expiresAtMs = this.#nowMs + ttlMs
      known.trustedMs = trusted(sentMs, ttlMs)
      return
    }
    this.note(() => `store: grants "${lockName}", token ${short(fencingToken)}`)
    if (fencingToken <= after) this.violate('tokens rise', `"${lockName}" got ${fencingToken} after ${after}`)
    for (const other of this.#storedOn(lockName)) {
      if (!exclusive && !other.exclusive) continue
      if (this.#isForcing(lockName)) this.#end(other, 'forced')
      else if (this.#options.exact) this.violate('two are inside', `the store granted "${lockName}" twice`)
    }
    this.#tokens.set(lockName, Math.max(this.lastToken(lockName), fencingToken))
    this.#leases.set(keyOf(grant), {
      lockName,
      fencingToken,
      claimId,
      exclusive,
      ttlMs,
      grantedMs: this.#nowMs,
      minHoldMs: 0,
      expiresAtMs: this.#nowMs + ttlMs,
      trustedMs: trusted(sentMs, ttlMs),
      endedMs: undefined,
      forced: false,
      handedOver: false,
      renewals: 0,
      overlapping: false,
      extensions: new Set(),
    })
  }

  /**
   * A renewal is sent. It can arrive at any moment, and the lease may be shorter from now on. Returns what to call when
   * the store has done it, and when its answer has arrived.
   */
  renewing(ref: Ref, ttlMs: number): { done(): void; answered(renewed: boolean): void } {
    const lease = this.#leases.get(keyOf(ref))
    if (lease === undefined) return { done() {}, answered() {} }
    const sentMs = this.#nowMs
    const endThenMs = lease.expiresAtMs
    lease.trustedMs = Math.min(lease.trustedMs, trusted(sentMs, ttlMs))
    lease.renewals += 1
    if (lease.renewals > 1) lease.overlapping = true
    return {
      done: () => this.#renewed(lease, ttlMs, endThenMs),
      answered: (renewed) => {
        lease.renewals -= 1
        // An answer that comes too late does not save the lease.
        if (renewed && this.#nowMs < lease.trustedMs) {
          const trustedMs = trusted(sentMs, ttlMs)
          lease.trustedMs = lease.overlapping ? Math.min(lease.trustedMs, trustedMs) : trustedMs
        }
        if (lease.renewals === 0) lease.overlapping = false
      },
    }
  }

  /** `endThenMs`: the end of the lease when the renewal was sent. Another one may have overtaken it. */
  #renewed(lease: StoredLease, ttlMs: number, endThenMs: number): void {
    const expiresAtMs = this.#nowMs + ttlMs
    if (this.#options.exact && expiresAtMs < lease.expiresAtMs - 1) {
      // The request of an extension that nothing awaited may arrive after the last use. The release follows it.
      const isAsked = [...lease.extensions].some((extension) => extension.ttlMs === ttlMs)
      if (this.#usesOf(lease).length === 0 && !lease.handedOver && !isAsked) this.#assertMinHold(lease, expiresAtMs)
      this.note(() => `store: shortens "${lease.lockName}" to ${ttlMs} ms`)
      // A client counts from when it sent its requests, so it knows of an end that is a little earlier.
      const isKnownEnd = expiresAtMs >= endThenMs - this.#options.latencyMs * 2
      for (const extension of isKnownEnd ? [] : lease.extensions) {
        const other = extension.others.find((use) => this.#uses.has(use))
        if (extension.ttlMs !== ttlMs || other === undefined) continue
        this.violate('a shared lease is not shortened', `to ${ttlMs} ms, although ${other.what} uses it`)
      }
    }
    lease.expiresAtMs = expiresAtMs
  }

  released({ lockName, claimId, fencingToken }: { lockName: string; claimId: string; fencingToken?: number }): void {
    for (const lease of this.#storedOn(lockName)) {
      if (lease.claimId !== claimId || (fencingToken ?? lease.fencingToken) !== lease.fencingToken) continue
      this.#end(lease, 'released')
      this.#assertMinHold(lease, this.#nowMs)
      for (const use of this.#usesOf(lease)) {
        if (this.#nowMs >= use.keptUntilMs - this.#options.slackMs || this.#nowMs >= lease.trustedMs) continue
        this.violate('it keeps its lease', `${use.what} may go on while its instance is being closed`)
      }
      for (const use of this.#usesOf(lease)) this.#assertTold(use, 'its lease was released in the store')
    }
  }

  #assertMinHold(lease: StoredLease, endMs: number): void {
    const { lockName, grantedMs, minHoldMs, trustedMs } = lease
    if (endMs >= grantedMs + minHoldMs - 1 || this.#nowMs >= trustedMs || !this.#options.exact) return
    this.violate('a lock is kept for minHoldSeconds', `"${lockName}" ends after ${endMs - grantedMs} ms`)
  }

  /** A forced release begins. Returns what to call with the tokens that it ended. */
  forcing(lockName: string): (tokens: readonly number[]) => void {
    this.#forcing.set(lockName, (this.#forcing.get(lockName) ?? 0) + 1)
    return (tokens) => {
      this.#forcing.set(lockName, (this.#forcing.get(lockName) ?? 1) - 1)
      for (const fencingToken of tokens) {
        const lease = this.#leases.get(keyOf({ lockName, fencingToken }))
        if (lease !== undefined) this.#end(lease, 'forced')
      }
    }
  }

  #end(lease: StoredLease, how: 'released' | 'forced'): void {
    lease.endedMs ??= this.#nowMs
    if (how === 'forced') lease.forced = true
    this.note(() => `store: "${lease.lockName}", token ${short(lease.fencingToken)}: ${how}`)
  }

  // The program.

  began(use: Use): void {
    const lease = this.#leases.get(keyOf(use))
    this.note(() => `${use.what} begins, token ${short(use.fencingToken)}`)
    if (lease === undefined) {
      this.violate('tokens rise', `${use.what} got ${use.fencingToken}, which the store never granted`)
      return
    }
    if (![...this.#leaseOf.values()].includes(lease)) lease.minHoldMs = use.minHoldMs
    this.#leaseOf.set(use, lease)
    for (const matches of this.#excuses) if (matches(use)) use.excused = true
    for (const other of this.#uses) if (other.lockName === use.lockName) this.#assertExcluded(use, other)
    const permits = use.kind === 'permits' ? this.#permitsOn(use.lockName) + use.permits : 0
    if (permits > PERMITS) this.violate('two are inside', `${permits} permits of ${PERMITS} with ${use.what}`)
    this.#uses.add(use)
  }

  #assertExcluded(use: Use, other: Use): void {
    if (use.kind !== 'exclusive' && other.kind !== 'exclusive') return
    const isSame = use.fencingToken === other.fencingToken
    // A process does not know at once that its lease was ended by force. A re-entry then goes into that lease.
    if (isSame ? use.mayShare : this.#isForced(other) || this.#isForced(use)) return
    if (!other.believes()) return
    this.violate('two are inside', `${use.what} while ${other.what}${isSame ? ', under one lease' : ''}`)
  }

  #permitsOn(lockName: string): number {
    const others = [...this.#uses].filter(
      (use) => use.lockName === lockName && use.kind === 'permits' && !this.#isForced(use) && use.believes(),
    )
    return others.reduce((sum, { permits }) => sum + permits, 0)
  }

  /** Every use must know by now that its lease has ended, and no use may have been put out without a reason. */
  sweep(): void {
    for (const use of this.#uses) {
      const lease = this.#leaseOf.get(use) as StoredLease
      if (use.believes()) {
        if (lease.endedMs !== undefined && !lease.forced) this.#assertTold(use, 'its lease was released')
        const lateMs = this.#options.exact ? 0 : this.#options.slackMs
        if (this.#options.expires && this.#nowMs > lease.expiresAtMs + lateMs)
          this.#assertTold(use, 'its lease expired')
      } else if (!this.#hadReason(use)) {
        this.violate('it keeps its lease', `${use.what} was put out, and nothing had ended its lease`)
        this.ended(use)
      }
    }
  }

  #assertTold(use: Use, why: string): void {
    if (!this.#uses.has(use) || !use.believes()) return
    this.violate('a loss is reported', `${use.what} still relies on its lease: ${why}`)
    this.ended(use)
  }

  #hadReason(use: Use): boolean {
    const lease = this.#leaseOf.get(use)
    if (lease === undefined || use.excused || use.leaving || !this.#options.exact || this.#isForced(use)) return true
    if (this.#nowMs < lease.trustedMs) return false
    // Heartbeats come often enough, and every message arrives.
    const isRenewed = this.#usesOf(lease).some(({ renews }) => renews) && !this.#options.keptShorter.has(use.lockName)
    return !isRenewed || lease.ttlMs < this.#options.slackMs * 10
  }

  /** The program ends a use, or knows that it has ended. */
  ended(use: Use): void {
    if (this.#uses.delete(use)) this.note(() => `${use.what} ends`)
    use.ended = true
  }

  /** The program ends a use before its function has ended. What was entered inside it may end with it. */
  endedEarly(use: Use): void {
    use.excused = true
    this.ended(use)
    this.excuse(({ inside }) => inside.includes(use))
  }

  /** A call begins that may put these out, also those that begin meanwhile. Returns what to call at its end. */
  excuse(matches: (use: Use) => boolean): () => void {
    for (const use of [...this.#uses, ...this.#ending]) {
      if (!matches(use)) continue
      use.excused = true
      use.keptUntilMs = 0
    }
    this.#excuses.add(matches)
    return () => this.#excuses.delete(matches)
  }

  /** An instance begins to close. For this long it lets go on what has begun. */
  closing(object: object, drainMs: number, settleMs: number): void {
    const known = [...this.#uses].filter((use) => use.object === object)
    const kept = known.map((use) => {
      const untilMs = this.#nowMs + drainMs + (use.runs ? settleMs : 0)
      return use.excused ? Math.min(use.keptUntilMs, untilMs) : untilMs
    })
    this.excuse((use) => use.object === object)
    known.forEach((use, at) => {
      use.keptUntilMs = kept[at] ?? 0
    })
  }

  /** A function has ended. Returns why its call must reject with `LeaseLostError`, if it must. */
  functionEnded(uses: readonly Use[]): string | undefined {
    const lost = uses.find((use) => this.#uses.has(use) && this.#isSurelyLost(use))
    for (const use of uses) {
      this.ended(use)
      this.#ending.add(use)
    }
    return lost && `"${lost.lockName}" ended before ${lost.what} did`
  }

  /** The call of a function has settled. `isLost`: with `LeaseLostError`, although no lease had ended before. */
  settled(uses: readonly Use[], isLost: boolean): void {
    for (const use of uses) this.#ending.delete(use)
    if (!isLost || uses.length === 0 || uses.some((use) => this.#hadReason(use))) return
    this.violate('it keeps its lease', `${uses[0]?.what} rejected, and nothing had ended its lease`)
  }

  /** Whether it has ended for the library, too: a call may wait for functions that its own function did not await. */
  hasEnded(use: Use): boolean {
    return use.ended && !this.#ending.has(use)
  }

  /** Whether a release of it now cannot be answered with `true`. */
  isOver(use: Use): boolean {
    return this.hasEnded(use) || this.#isSurelyLost(use)
  }

  #isSurelyLost(use: Use): boolean {
    const lease = this.#leaseOf.get(use)
    if (lease === undefined) return false
    if (this.#options.expires && this.#nowMs > lease.expiresAtMs + this.#options.slackMs) return true
    if (lease.endedMs === undefined) return false
    // An answer that comes after the deadline says nothing: the lease may have expired before the release arrived.
    return !lease.forced || this.#nowMs < lease.trustedMs - this.#options.slackMs
  }

  /** Whether two uses are of one lease. */
  share(use: Use, other: Use): boolean {
    return this.#leaseOf.get(use) === this.#leaseOf.get(other)
  }

  /** Other uses of its lease that have not ended. */
  othersOf(use: Use): Use[] {
    const lease = this.#leaseOf.get(use)
    return lease === undefined ? [] : this.#usesOf(lease).filter((other) => other !== use && other.believes())
  }

  /** An extension of this lease begins, by one of its uses. Returns what to call when it has settled. */
  extending(use: Use, seconds: number, others = this.othersOf(use)): () => void {
    const lease = this.#leaseOf.get(use)
    if (lease === undefined) return () => undefined
    const extension = { ttlMs: seconds * 1_000, others }
    lease.extensions.add(extension)
    return () => lease.extensions.delete(extension)
  }

  /** Calls that ask for the lease that these have begin, and may extend it. */
  joining(matches: (use: Use) => boolean, seconds: number): () => void {
    // A heartbeat sets the lease's own TTL.
    const others = this.usesOn((use) => matches(use) && this.#leaseOf.get(use)?.ttlMs !== seconds * 1_000)
    const ends = others.map((use) => this.extending(use, seconds, [use]))
    return () => {
      for (const end of ends) end()
    }
  }

  /** Every call has settled: each lease in the store has a use. */
  unused(): void {
    for (const lease of this.#leases.values()) {
      if (lease.endedMs !== undefined || this.#nowMs >= lease.trustedMs || this.mayStay(lease)) continue
      if (this.#usesOf(lease).some((use) => use.believes())) continue
      this.violate('nothing is left', `"${lease.lockName}" is held, and no call has it`)
    }
  }

  usesOn(matches: (use: Use) => boolean): Use[] {
    return [...this.#uses].filter(matches)
  }

  handedOver(use: Use): void {
    const lease = this.#leaseOf.get(use)
    if (lease !== undefined) lease.handedOver = true
    this.ended(use)
  }

  /** Whether a lease may outlive the instance that got it. */
  mayStay(ref: Ref): boolean {
    const { lockName } = ref
    const isHandedOver = this.#leases.get(keyOf(ref))?.handedOver === true
    return isHandedOver || lockName.endsWith(':done') || this.#options.keptLonger.has(lockName)
  }

  #storedOn(lockName: string): StoredLease[] {
    return [...this.#leases.values()].filter(
      (lease) => lease.lockName === lockName && lease.endedMs === undefined && lease.expiresAtMs > this.#nowMs,
    )
  }

  #usesOf(lease: StoredLease): Use[] {
    return [...this.#uses].filter((use) => this.#leaseOf.get(use) === lease)
  }

  #isForcing(lockName: string): boolean {
    return (this.#forcing.get(lockName) ?? 0) > 0
  }

  /** Its lease was ended by force, or may be at this moment. It learns of that by its deadline. */
  #isForced(use: Use): boolean {
    return this.#isForcing(use.lockName) || this.#leaseOf.get(use)?.forced === true
  }
}
