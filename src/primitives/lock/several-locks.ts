import { checkFunction } from '../../core/arguments.ts'
import type { Chain } from '../../core/claim/chain.ts'
import type { ClaimRequest, ClaimResult, Holder } from '../../core/claim/holder.ts'
import { AbortedError, InvalidArgumentError, isOutage, NotAcquiredError, StoreError } from '../../core/errors.ts'
import type { HeldLease } from '../../core/lease/held-lease.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { MAX_LOCKS_AT_ONCE } from '../../core/limits.ts'
import { checkLockName } from '../../core/names.ts'
import { eitherSignal, onAbort } from '../../core/time/abort.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import type { Claims } from './claims.ts'
import { EXCLUSIVE, type LockOptions } from './options.ts'
import { heldLeaseOf } from './result.ts'

/** Runs a function while holding every one of the names. `DistributedLock.withLocks` tells the whole of it. */
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
  // In the same step: the callbacks that hold their leases may end before the next one.
  using _ = claims.reentry.keep(entered)
  const leases = await claims.settle(takeAll(claims, requests, entered))
  const run = [...leases.values()].reduceRight(
    (inner: () => Promise<T>, lease) => () => claims.reentry.run(lease, EXCLUSIVE, inner),
    async () => fn(lockNames.map((lockName) => leases.get(lockName) as Lease)),
  )
  return await claims.running([...leases.values()], run)
}

function checkNames(lockNames: unknown): asserts lockNames is readonly string[] {
  if (!Array.isArray(lockNames) || lockNames.length === 0 || lockNames.length > MAX_LOCKS_AT_ONCE) {
    throw new InvalidArgumentError('lockNames', lockNames, `a list of 1 to ${MAX_LOCKS_AT_ONCE} lock names`)
  }
  lockNames.forEach((lockName: unknown, index) => {
    checkLockName(lockName, `lockNames[${index}]`)
  })
}

/** The one order in which everybody waits, in whatever language: that of the names' UTF-8 bytes. (JavaScript's own is that of UTF-16 code units.) */
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
  /** What is held already while the others are waited for. */
  readonly entered: readonly Lease[]
}

/** First all of them at once, as one group; if that is refused, one after the other in their order. All of them or none. */
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
  // Who waited on for the rest would wait for nothing.
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
 * In one step where the driver has groups: if one of them is held, no other process ever sees the others taken.
 * Elsewhere, what was granted is given back. Undefined: one of them is held, or the store failed for a moment, and there
 * is time to wait.
 */
async function takeAtOnce(
  taking: Taking,
  wanted: readonly ClaimRequest[],
  limit: Limit,
): Promise<readonly HeldLease[] | undefined> {
  using either = eitherSignal(wanted[0]?.signal ?? limit.signal, limit.signal)
  const { signal } = either
  const { capabilities } = taking.holder.store.driver
  const group = capabilities.groups && wanted.length > 1 ? taking.sharedChain.id : undefined
  // In one step of this process, too: a group goes out whole, or not at all.
  taking.holder.assertRoom(wanted.length)
  const asked = wanted.map((request) => claim(taking, { ...request, waitMs: 0, signal, group }))
  const ends = await Promise.allSettled(asked)
  const taken = ends.flatMap((end) => (end.status === 'fulfilled' && end.value.granted ? [end.value.lease] : []))
  if (taken.length === wanted.length) return taken
  await limit.race(discard(taken))
  const mayWait = limit.leftMs > 0
  // Those that are held come first: what is known says more than what is not.
  for (const [index, { lockName }] of wanted.entries()) {
    const end = ends[index] as PromiseSettledResult<ClaimResult>
    if (end.status === 'fulfilled' && !mayWait && !isFree(end.value)) {
      heldLeaseOf(lockName, end.value.granted ? end.value : { ...end.value, waitedMs: limit.waitedMs })
    }
  }
  for (const [index, { lockName }] of wanted.entries()) {
    const end = ends[index] as PromiseSettledResult<ClaimResult>
    // An outage of a moment ends no wait, here as with a single lock.
    if (end.status === 'fulfilled' || (mayWait && isOutage(end.reason))) continue
    const isLate = end.reason instanceof AbortedError && end.reason.cause === limit.signal.reason
    throw isLate ? new StoreError(`the store did not answer a claim of "${lockName}" in time${limit}`) : end.reason
  }
  return undefined
}

/** The one waiting time of all the claims. 0: there is none, and each is answered at once. */
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

  /** Aborts when it is over. */
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
   * Waits for what goes on in the background if need be: a store that does not answer must not make the caller wait
   * longer than it said. After that time it waits for `GRACE_MS` more, because a caller that is refused should find
   * nothing of its own left.
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

/** It was refused only because another one of its group was. */
const isFree = (result: ClaimResult): boolean => !result.granted && result.refusal?.free === true

const claim = ({ claims, holder, sharedChain }: Taking, request: ClaimRequest): Promise<ClaimResult> =>
  claims.claim(holder, { ...request, sharedChain })

const discard = (leases: readonly HeldLease[]): Promise<unknown> => Promise.all(leases.map((lease) => lease.discard()))
