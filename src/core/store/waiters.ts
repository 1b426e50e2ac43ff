import type { Claim, Driver, DriverListener, Grant, IsProvedBy, Refusal } from '../driver.ts'
import { type HoldfastError, isOutage } from '../errors.ts'
import type { Emitter } from '../events.ts'
import { Subscription, type SubscriptionParts } from './subscription.ts'

/** A claim that waits. */
export interface Waiter {
  readonly claim: Claim
  /** A hint that another request may succeed. */
  wake(isProvedBy?: IsProvedBy): void
  /** A message says that the store has granted the claim without a request. */
  announced(grant: Grant, isProvedBy: IsProvedBy | undefined): void
}

/** A lease of this process, as messages concern it. */
export interface Reported {
  readonly claim: Claim
  readonly fencingToken: number
  /** A message says that the lease was ended by force, or with its session. */
  lossReported(cause: Error): void
  /** An instance of this process has ended the lease by force. */
  lose(loss: { readonly kind: 'force-released'; readonly message: string }): void
}

/** The leases of an instance. */
export interface ReportedLeases {
  named(lockName: string): readonly Reported[]
  all(): readonly Reported[]
}

export interface WaiterParts extends SubscriptionParts {
  readonly driver: Driver
}

/**
 * The registry of what messages of one driver are about: the claims of a store client that wait, and its leases. It has
 * one subscription to the store, which is open while a claim waits, and while a lease needs it. An instance that has
 * nothing here is not referred to.
 */
export class Waiters {
  /** The leases of each instance that has any. */
  readonly leases = new Set<ReportedLeases>()
  /** Made when a message asks for it, and kept until no lease is left. With it, a pair on memory takes 8 % longer. */
  #leasesByClaim: Map<string, Reported> | undefined
  readonly #parts: WaiterParts
  readonly #byName = new Map<string, NameQueue>()
  readonly #byClaim = new Map<string, Waiter>()
  /** By the events of the instance that claims. */
  readonly #byInstance = new Map<Emitter, Set<Waiter>>()
  /** The leases that keep the subscription open. */
  readonly #listening = new Set<{ readonly events: Emitter }>()
  readonly #subscription: Subscription

  constructor(parts: WaiterParts) {
    const { driver } = parts
    this.#parts = parts
    this.#subscription = new Subscription(parts, {
      open: driver.listen && ((disconnected) => (driver as Required<Driver>).listen(this.#listener(disconnected))),
      isNeeded: () => this.#byClaim.size > 0 || this.#listening.size > 0,
      reopened: () => {
        for (const lockName of [...this.#byName.keys()]) this.wake({ lockName })
      },
      failed: (error) => {
        const instances = [...this.#byInstance.keys(), ...Array.from(this.#listening, ({ events }) => events)]
        for (const events of new Set(instances)) events.heard('listenFailed')?.({ error })
      },
    })
  }

  /** The claims of an instance that wait. */
  of(events: Emitter): ReadonlySet<Waiter> {
    return this.#byInstance.get(events) ?? NONE
  }

  /** Whether a message may arrive now. It stays true between two tries to subscribe. */
  get active(): boolean {
    return this.#subscription.active
  }

  /** Since when messages arrive, on the monotonic clock. Undefined while they do not: waiters then have to poll. */
  get subscribedAtMs(): number | undefined {
    return this.#subscription.openedAtMs
  }

  /**
   * Opens the subscription unless it is open. Resolves with `subscribedAtMs`, or with undefined if the driver has no
   * messages or the subscription fails. Never rejects.
   */
  subscribe(): Promise<number | undefined> {
    return this.#subscription.open()
  }

  /** Keeps the subscription open for a lease. Returns a function that ends that. */
  listenForLoss(events: Emitter): () => void {
    const lease = { events }
    this.#listening.add(lease)
    this.#subscription.keep()
    void this.#subscription.open()
    return () => {
      this.#listening.delete(lease)
      this.#subscription.stopWhenIdle()
    }
  }

  join(waiter: Waiter, events: Emitter): NameQueue {
    const { lockName, claimId } = waiter.claim
    const queue = this.#byName.get(lockName) ?? new NameQueue()
    this.#byName.set(lockName, queue)
    queue.waiters.add(waiter)
    this.#byClaim.set(claimId, waiter)
    const waiters = this.#byInstance.get(events) ?? new Set()
    this.#byInstance.set(events, waiters.add(waiter))
    this.#subscription.keep()
    return queue
  }

  leave(waiter: Waiter, events: Emitter): void {
    const { lockName, claimId } = waiter.claim
    const queue = this.#byName.get(lockName)
    if (queue === undefined || !this.#byClaim.delete(claimId)) return
    const waiters = this.#byInstance.get(events)
    waiters?.delete(waiter)
    if (waiters?.size === 0) this.#byInstance.delete(events)
    const wasFirst = queue.isFirst(waiter)
    queue.waiters.delete(waiter)
    if (queue.waiters.size === 0) this.#byName.delete(lockName)
    else if (wasFirst && !this.#parts.driver.capabilities.queue) queue.next(this.#parts.clock.now().monotonicMs)
    if (this.#byClaim.size === 0) this.#subscription.stopWhenIdle()
  }

  /** The lease of this claim, if this process has it. */
  leaseOf(claimId: string): Reported | undefined {
    this.#leasesByClaim ??= new Map(
      [...this.leases].flatMap((leases) => leases.all()).map((lease) => [lease.claim.claimId, lease]),
    )
    return this.#leasesByClaim.get(claimId)
  }

  leaseBegan(lease: Reported): void {
    this.#leasesByClaim?.set(lease.claim.claimId, lease)
  }

  leaseEnded({ claim: { claimId } }: Reported): void {
    this.#leasesByClaim?.delete(claimId)
    if (this.#leasesByClaim?.size === 0) this.#leasesByClaim = undefined
  }

  wake(target: { readonly claimId: string } | { readonly lockName: string }, isProvedBy?: IsProvedBy): void {
    if ('claimId' in target) this.#byClaim.get(target.claimId)?.wake(isProvedBy)
    else for (const waiter of [...(this.#byName.get(target.lockName)?.waiters ?? [])]) waiter.wake()
  }

  close(): Promise<void> {
    return this.#subscription.close()
  }

  #listener(disconnected: (cause: Error) => void): DriverListener {
    return {
      wake: (target, isProvedBy) => this.wake(target, isProvedBy),
      granted: (claimId, grant, isProvedBy) => this.#byClaim.get(claimId)?.announced(grant, isProvedBy),
      lost: (claimId, cause) => this.leaseOf(claimId)?.lossReported(cause),
      disconnected,
    }
  }
}

/**
 * The waiters of this process on one lock name, in the order in which they joined. Where the store has no queue, only
 * the first of them sends requests, and the answer that it gets is the answer to all.
 */
export class NameQueue {
  readonly waiters = new Set<Waiter>()
  #lastAnswer: Refusal | HoldfastError | undefined
  /** Since when no waiter that was first has got an answer, on the monotonic clock. */
  #unansweredSinceMs: number | undefined

  isFirst(waiter: Waiter): boolean {
    const [first] = this.waiters
    return first === waiter
  }

  /** The first waiter has left. */
  next(nowMs: number): void {
    this.#unansweredSinceMs ??= nowMs
    const [first] = this.waiters
    first?.wake()
  }

  /** What the store said to the first waiter. An error other than an outage may concern that claim only. */
  answered(answer: Refusal | HoldfastError): void {
    this.#unansweredSinceMs = undefined
    if (!(answer instanceof Error) || isOutage(answer)) this.#lastAnswer = answer
  }

  /**
   * The last answer, unless it is older than a call may take. Without that bound, waiters that are first one after the
   * other, each for less than a call may take, would report an outage as contention forever.
   */
  lastAnswer(nowMs: number, callTimeoutMs: number): Refusal | HoldfastError | undefined {
    const unansweredMs = this.#unansweredSinceMs === undefined ? 0 : nowMs - this.#unansweredSinceMs
    return unansweredMs < callTimeoutMs ? this.#lastAnswer : undefined
  }
}

const NONE: ReadonlySet<Waiter> = new Set()
