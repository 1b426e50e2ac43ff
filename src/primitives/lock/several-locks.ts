import { checkFunction } from '../../core/arguments.ts'
import type { Chain } from '../../core/claim/chain.ts'
import type { ClaimRequest, ClaimResult, Holder } from '../../core/claim/holder.ts'
import { AbortedError, InvalidArgumentError, isOutage, NotAcquiredError, StoreError } from '../../core/errors.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { MAX_LOCKS_AT_ONCE } from '../../core/limits.ts'
import { checkLockName } from '../../core/names.ts'
import { isArray } from '../../core/options.ts'
import { eitherSignal, onAbort } from '../../core/time/abort.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import type { Claims } from './claims.ts'
import { EXCLUSIVE, type LockOptions } from './options.ts'
import { heldLeaseOf } from './result.ts'

/** See `DistributedLock.withLocks`. */
export async function withLocks<T>(
  claims: Claims,
  lockNames: readonly string[],
  fn: (leases: Lease[]) => Promise<T> | T,
  options: LockOptions,
): Promise<T> {
  checkNames(lockNames)
  checkFunction('fn', fn)
  const requests = inOrder(lockNames).map((lockName) => claims.request(lockName, EXCLUSIVE, options, true))
  const entered = requests.flatMap((request) => claims.reentry.enter(request, EXCLUSIVE) ?? [])
  // In the same step: one step later the callbacks that hold these leases may have ended.
  using _ = claims.reentry.keep(entered)
  const leases = await claims.settle(takeAll(claims, requests, entered))
  const run = [...leases.values()].reduceRight(
    (inner: () => Promise<T>, lease) => () => claims.enter(lease, EXCLUSIVE, inner),
    async () => fn(lockNames.map((lockName) => leases.get(lockName) as Lease)),
  )
  return await claims.running([...leases.values()], run)
}

function checkNames(lockNames: unknown): asserts lockNames is readonly string[] {
  if (!isArray(lockNames) || lockNames.length === 0 || lockNames.length > MAX_LOCKS_AT_ONCE) {
    throw new InvalidArgumentError('lockNames', lockNames, `a list of 1 to ${MAX_LOCKS_AT_ONCE} lock names`)
  }
  lockNames.forEach((lockName: unknown, index) => {
    checkLockName(lockName, `lockNames[${index}]`)
  })
}

/** All clients, in any language, wait in the order of UTF-8 bytes. (JavaScript itself sorts by UTF-16 code units.) */
const inOrder = (lockNames: readonly string[]): string[] =>
  [...new Set(lockNames)].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)))

async function takeAll(
  claims: Claims,
  requests: readonly ClaimRequest[],
  entered: readonly Lease[],
): Promise<Map<string, Lease>> {
  const leases = new Map(entered.map((lease) => [lease.lockName, lease]))
  const wanted = requests.filter(({ lockName }) => !leases.has(lockName))
  try {
    const holder = await claims.open()
    const sharedChain = requests[0]?.chain?.newSharedChain() ?? holder.newChain()
    for (const lease of await takeWanted({ claims, holder, sharedChain, entered }, wanted))
      leases.set(lease.lockName, lease)
    return leases
  } catch (error) {
    for (const lease of entered) await lease.release()
    throw error
  }
}

interface Taking {
  readonly claims: Claims
  readonly holder: Holder
  readonly sharedChain: Chain
  /** Leases that were entered again, and are held while it waits for the others. */
  readonly entered: readonly Lease[]
}

/** First all at once, as one group. If that is refused, one after the other in their order. All or none. */
async function takeWanted(taking: Taking, wanted: readonly ClaimRequest[]): Promise<readonly HeldLease[]> {
  using limit = new Limit(taking.holder.clock, wanted[0]?.waitMs ?? 0)
  const taken = (await takeAtOnce(taking, wanted, limit)) ?? (await takeInOrder(taking, wanted, limit))
  try {
    for (const lease of [...taking.entered, ...taken]) lease.assertHeld()
    return taken
  } catch (error) {
    await limit.race(discard(taken))
    throw error
  }
}

async function takeInOrder(
  taking: Taking,
  wanted: readonly ClaimRequest[],
  limit: Limit,
): Promise<readonly HeldLease[]> {
  const taken: HeldLease[] = []
  const lost = new AbortController()
  // When a lease is lost, waiting for the rest is pointless.
  const watch = ({ signal }: Lease): (() => void) => onAbort(signal, () => lost.abort(signal.reason))
  const stops = taking.entered.map(watch)
  try {
    for (const request of wanted) {
      const waitMs = limit.leftMs
      if (waitMs === 0) throw new NotAcquiredError(request.lockName, `"${request.lockName}" was not asked for${limit}`)
      using either = request.signal && eitherSignal(request.signal, lost.signal)
      const result = await claim(taking, { ...request, waitMs, signal: either?.signal ?? lost.signal })
      const lease = heldLeaseOf(request.lockName, result.granted ? result : { ...result, waitedMs: limit.waitedMs })
      taken.push(lease)
      stops.push(watch(lease))
    }
    return taken
  } catch (error) {
    await limit.race(discard(taken))
    throw lost.signal.aborted && error instanceof AbortedError && error.cause === lost.signal.reason
      ? error.cause
      : error
  } finally {
    for (const stop of stops) stop()
  }
}

/**
 * With a driver that has groups, all are taken in one step: if one is held, no other process sees the others taken.
 * With other drivers, what was granted is released. Undefined: one is held, or there was an outage, and there is time
 * to wait.
 */
async function takeAtOnce(
  taking: Taking,
  wanted: readonly ClaimRequest[],
  limit: Limit,
): Promise<readonly HeldLease[] | undefined> {
  using either = eitherSignal(wanted[0]?.signal ?? limit.signal, limit.signal)
  const { signal } = either
  const group = taking.holder.capabilities.groups && wanted.length > 1 ? taking.sharedChain.id : undefined
  // A group is sent complete or not at all.
  taking.holder.assertRoom(wanted.length)
  const asked = wanted.map((request) => claim(taking, { ...request, waitMs: 0, signal, group }))
  const ends = await Promise.allSettled(asked)
  const taken = ends.flatMap((end) => (end.status === 'fulfilled' && end.value.granted ? [end.value.lease] : []))
  if (taken.length === wanted.length) return taken
  await limit.race(discard(taken))
  const mayWait = limit.leftMs > 0
  // Contention is reported before an outage: a known holder says more than an unknown outcome.
  for (const [index, { lockName }] of wanted.entries()) {
    const end = ends[index] as PromiseSettledResult<ClaimResult>
    if (end.status === 'fulfilled' && !mayWait && !isFree(end.value)) {
      heldLeaseOf(lockName, end.value.granted ? end.value : { ...end.value, waitedMs: limit.waitedMs })
    }
  }
  for (const [index, { lockName }] of wanted.entries()) {
    const end = ends[index] as PromiseSettledResult<ClaimResult>
    // A short outage does not end the wait, as with a single lock.
    if (end.status === 'fulfilled' || (mayWait && isOutage(end.reason))) continue
    const isLate = end.reason instanceof AbortedError && end.reason.cause === limit.signal.reason
    throw isLate ? new StoreError(`the store did not answer a claim of "${lockName}" in time${limit}`) : end.reason
  }
  return undefined
}

/** The one waiting time of all claims. 0: none waits. */
class Limit implements Disposable {
  readonly #clock: Clock
  readonly #startedMs: number
  readonly #waitMs: number
  readonly #over = new AbortController()
  readonly #timer: Timer | undefined

  constructor(clock: Clock, waitMs: number) {
    this.#clock = clock
    this.#startedMs = clock.now().monotonicMs
    this.#waitMs = waitMs
    if (waitMs > 0) this.#timer = clock.setTimer(() => this.#over.abort(new Error('the waiting time is over')), waitMs)
  }

  /** Aborts when the waiting time is over. */
  get signal(): AbortSignal {
    return this.#over.signal
  }

  get waitedMs(): number {
    return this.#waitMs === 0 ? 0 : this.#clock.now().monotonicMs - this.#startedMs
  }

  get leftMs(): number {
    return Math.max(0, this.#waitMs - this.waitedMs)
  }

  /**
   * Waits for the work until the waiting time is over; the work then goes on in the background. So a store that does
   * not answer cannot make the caller wait longer than it asked for. `GRACE_MS` are added, because a caller that is
   * refused should find none of its own leases left.
   */
  async race(work: Promise<unknown>): Promise<void> {
    if (this.#timer === undefined) {
      await work
      return
    }
    let timer: Timer | undefined
    const over = new Promise<void>((resolve) => {
      timer = this.#clock.setTimer(resolve, Math.max(this.leftMs, GRACE_MS))
    })
    await Promise.race([work, over])
    timer?.cancel()
  }

  toString(): string {
    return this.#waitMs === 0 ? '' : ` (waited ${(this.waitedMs / 1_000).toFixed(1)} s)`
  }

  [Symbol.dispose](): void {
    this.#timer?.cancel()
  }
}

const GRACE_MS = 250

/** It was refused only because another claim of its group was. */
const isFree = (result: ClaimResult): boolean => !result.granted && result.refusal?.free === true

const claim = ({ claims, holder, sharedChain }: Taking, request: ClaimRequest): Promise<ClaimResult> =>
  claims.claim(holder, { ...request, sharedChain })

const discard = (leases: readonly HeldLease[]): Promise<unknown> => Promise.all(leases.map((lease) => lease.discard()))
