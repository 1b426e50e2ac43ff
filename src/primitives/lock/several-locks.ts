import { checkFunction, checkLockName } from '../../core/arguments.ts'
import type { ClaimRequest, Holder, Refused } from '../../core/claim/holder.ts'
import { AbortedError, InvalidArgumentError, isOutage, NotAcquiredError, StoreError } from '../../core/errors.ts'
import type { Chain } from '../../core/lease/chain.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { LeaseUse } from '../../core/lease/lease-use.ts'
import { MAX_LOCKS_AT_ONCE, MAX_WITHDRAWAL_MS } from '../../core/limits.ts'
import { isArray } from '../../core/options.ts'
import { eitherSignal, onAbort } from '../../core/time/abort.ts'
import { afterReading, type Clock, type Timer } from '../../core/time/clock.ts'
import { type Claims, type LockOptions, leaseOf } from './claims.ts'
import { EXCLUSIVE } from './reentry.ts'

/** See `DistributedLock.withLocks`. */
export function withLocks<T>(
  claims: Claims,
  lockNames: readonly string[],
  fn: (leases: Lease[]) => Promise<T> | T,
  options: LockOptions,
): Promise<T> {
  try {
    return takeAndRun(claims, lockNames, fn, options)
  } catch (error) {
    return Promise.reject(error)
  }
}

function takeAndRun<T>(
  claims: Claims,
  lockNames: readonly string[],
  fn: (leases: Lease[]) => Promise<T> | T,
  options: LockOptions,
): Promise<T> {
  checkNames(lockNames)
  checkFunction('fn', fn)
  const requests = inOrder(lockNames).map((lockName) => claims.request(lockName, EXCLUSIVE, options, true))
  const entries = requests.flatMap((request) => claims.reentry.enter(request, EXCLUSIVE) ?? [])
  const work = async (asked: readonly ClaimRequest[]): Promise<T> => {
    const entered = entries.map(({ use }) => use)
    const uses = await claims.settle(takeAll(claims, asked, entered))
    const all = [...uses.values()]
    const call = async (): Promise<T> => fn(lockNames.map((lockName) => uses.get(lockName) as Lease))
    return claims.run(all, () => claims.runInside(all, EXCLUSIVE, call))
  }
  // The callback around it waits for what has entered its lock.
  if (entries.length > 0) return claims.reentry.keepOpenFor(entries, () => work(requests))
  return claims.observed(requests, work)
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
  entered: readonly LeaseUse[],
): Promise<Map<string, LeaseUse>> {
  const leases = new Map(entered.map((lease) => [lease.lockName, lease]))
  const wanted = requests.filter(({ lockName }) => !leases.has(lockName))
  const [first] = requests as [ClaimRequest]
  using limit = new Limit(claims.clock, first.patienceMs)
  try {
    const holder = await claims.open(first)
    const sharedChain = first.chain?.newSharedChain() ?? holder.newChain()
    const taken = await takeWanted({ claims, holder, sharedChain, entered }, wanted, limit)
    for (const lease of taken) leases.set(lease.lockName, lease)
    return leases
  } catch (error) {
    await limit.race(discard(entered))
    throw error
  }
}

interface Taking {
  readonly claims: Claims
  readonly holder: Holder
  readonly sharedChain: Chain
  /** Leases that were entered again, and are held while it waits for the others. */
  readonly entered: readonly LeaseUse[]
}

/** First all at once, as one group. If that is refused, one after the other in their order. All or none. */
async function takeWanted(taking: Taking, wanted: readonly ClaimRequest[], limit: Limit): Promise<readonly LeaseUse[]> {
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
): Promise<readonly LeaseUse[]> {
  const taken: LeaseUse[] = []
  const lost = new AbortController()
  // When a lease is lost, waiting for the rest is pointless.
  const watch = ({ signal }: Lease): (() => void) => onAbort(signal, () => lost.abort(signal.reason))
  const stops = taking.entered.map(watch)
  try {
    for (const request of wanted) {
      const patienceMs = limit.leftMs
      if (patienceMs === 0)
        throw new NotAcquiredError(request.lockName, `"${request.lockName}" was not asked for${limit}`)
      using either = request.signal && eitherSignal(request.signal, lost.signal)
      const result = await claim(taking, { ...request, patienceMs, signal: either?.signal ?? lost.signal })
      const use = leaseOf(request.lockName, limited(result, limit))
      taken.push(use)
      stops.push(watch(use))
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
): Promise<readonly LeaseUse[] | undefined> {
  using either = eitherSignal(wanted[0]?.signal ?? limit.signal, limit.signal)
  const { signal } = either
  const group = taking.holder.capabilities.groups && wanted.length > 1 ? taking.sharedChain.id : undefined
  // A group is sent complete or not at all.
  taking.holder.assertRoom(wanted.length)
  const asked = wanted.map((request) => claim(taking, { ...request, patienceMs: 0, signal, group }))
  const ends = await Promise.allSettled(asked)
  const taken = ends.flatMap((end) => (end.status === 'fulfilled' && end.value instanceof LeaseUse ? [end.value] : []))
  if (taken.length === wanted.length) return taken
  await limit.race(discard(taken))
  const mayWait = limit.leftMs > 0
  // Contention is reported before an outage: a known holder says more than an unknown outcome.
  for (const [index, { lockName }] of wanted.entries()) {
    const end = ends[index] as PromiseSettledResult<LeaseUse | Refused>
    if (end.status === 'fulfilled' && !mayWait && !isFree(end.value)) {
      leaseOf(lockName, limited(end.value, limit))
    }
  }
  for (const [index, { lockName }] of wanted.entries()) {
    const end = ends[index] as PromiseSettledResult<LeaseUse | Refused>
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
    const end = (): void => this.#over.abort(new Error('the waiting time is over'))
    if (waitMs > 0) this.#timer = clock.setTimer(() => afterReading(clock, end), waitMs)
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
   * not answer cannot make the caller wait longer than it asked for. `MAX_WITHDRAWAL_MS` are added, because a caller
   * that is refused should find none of its own leases left.
   */
  async race(work: Promise<unknown>): Promise<void> {
    if (this.#timer === undefined) {
      await work
      return
    }
    const graceMs = Math.min(MAX_WITHDRAWAL_MS, this.#waitMs + MAX_WITHDRAWAL_MS - this.waitedMs)
    if (graceMs <= 0) return
    let timer: Timer | undefined
    const over = new Promise<void>((resolve) => {
      timer = this.#clock.setTimer(resolve, Math.max(this.leftMs, graceMs))
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

/** It was refused only because another claim of its group was. */
const isFree = (outcome: LeaseUse | Refused): boolean => !(outcome instanceof LeaseUse) && outcome.refusal.free === true

/** A refusal tells for how long all of the names were waited for. */
const limited = (outcome: LeaseUse | Refused, { waitedMs }: Limit): LeaseUse | Refused =>
  outcome instanceof LeaseUse ? outcome : { ...outcome, waitedMs }

const claim = ({ claims, holder, sharedChain }: Taking, request: ClaimRequest): Promise<LeaseUse | Refused> =>
  claims.claim(holder, { ...request, sharedChain })

const discard = (uses: readonly LeaseUse[]): Promise<unknown> => Promise.all(uses.map((use) => use.discard()))
