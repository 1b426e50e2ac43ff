import { checkFunction } from '../core/arguments.ts'
import type { Chain } from '../core/chain.ts'
import { AbortedError, InvalidArgumentError, StoreError } from '../core/errors.ts'
import type { ClaimRequest, ClaimResult, Holder } from '../core/holder.ts'
import type { HeldLease, Lease } from '../core/lease.ts'
import { MAX_LOCKS_AT_ONCE } from '../core/limits.ts'
import { checkLockName } from '../core/names.ts'
import type { Claims } from './claims.ts'
import { EXCLUSIVE, type LockOptions } from './lock-options.ts'
import { heldLeaseOf, underLeases } from './lock-result.ts'

/** Runs a function while holding every one of the names. `DistributedLock.withLocks` tells the whole of it. */
export async function withLocks<T>(
  claims: Claims,
  lockNames: readonly string[],
  fn: (leases: Lease[]) => Promise<T> | T,
  options: LockOptions,
): Promise<T> {
  checkNames(lockNames)
  checkFunction('fn', fn)
  const leases = await takeAll(claims, inOrder(lockNames), options)
  const run = [...leases.values()].reduceRight(
    (inner: () => Promise<T>, lease) => () => claims.reentry.run(lease, EXCLUSIVE, inner),
    async () => fn(lockNames.map((lockName) => leases.get(lockName) as Lease)),
  )
  return underLeases([...leases.values()], run)
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
  lockNames: readonly string[],
  options: LockOptions,
): Promise<Map<string, Lease>> {
  const requests = lockNames.map((lockName) => claims.request(lockName, EXCLUSIVE, options, true))
  const leases = new Map<string, Lease>()
  for (const request of requests) {
    const entered = claims.reentry.enter(request, EXCLUSIVE)
    if (entered !== undefined) leases.set(request.lockName, entered)
  }
  const wanted = requests.filter(({ lockName }) => !leases.has(lockName))
  try {
    const holder = await claims.open()
    const together = requests[0]?.chain?.together() ?? holder.newChain()
    for (const lease of await takeWanted({ claims, holder, together }, wanted)) leases.set(lease.lockName, lease)
    return leases
  } catch (error) {
    for (const entered of leases.values()) await entered.release()
    throw error
  }
}

interface Taking {
  readonly claims: Claims
  readonly holder: Holder
  readonly together: Chain
}

/** First all of them at once, in one list; if that is refused, one after the other in their order. All of them or none. */
async function takeWanted(taking: Taking, wanted: readonly ClaimRequest[]): Promise<readonly HeldLease[]> {
  const { clock } = taking.holder
  const startedMs = clock.now().monotonicMs
  const waitMs = wanted[0]?.waitMs ?? 0
  const atOnce = await takeAtOnce(taking, wanted, waitMs > 0)
  if (atOnce !== undefined) return atOnce

  const taken: HeldLease[] = []
  const lost = new AbortController()
  try {
    for (const request of wanted) {
      const leftMs = Math.max(0, startedMs + waitMs - clock.now().monotonicMs)
      const signal = request.signal === undefined ? lost.signal : AbortSignal.any([request.signal, lost.signal])
      const lease = heldLeaseOf(request.lockName, await claim(taking, { ...request, waitMs: leftMs, signal }))
      taken.push(lease)
      // Who waited on for the rest would wait for nothing.
      lease.signal.addEventListener('abort', () => lost.abort(lease.lossError), { once: true })
    }
    for (const lease of taken) lease.assertHeld()
    return taken
  } catch (error) {
    await discard(taken)
    throw lost.signal.aborted && error instanceof AbortedError && error.cause === lost.signal.reason
      ? error.cause
      : error
  }
}

/** Undefined: one of them is held, or the store did not answer in time, and who may wait does. */
async function takeAtOnce(
  taking: Taking,
  wanted: readonly ClaimRequest[],
  mayWait: boolean,
): Promise<readonly HeldLease[] | undefined> {
  const ends = await Promise.allSettled(wanted.map((request) => claim(taking, { ...request, waitMs: 0 })))
  const taken = ends.flatMap((end) => (end.status === 'fulfilled' && end.value.granted ? [end.value.lease] : []))
  if (taken.length === wanted.length) return taken
  await discard(taken)
  for (const [index, { lockName }] of wanted.entries()) {
    const end = ends[index] as PromiseSettledResult<ClaimResult>
    if (end.status === 'fulfilled') {
      if (!mayWait) heldLeaseOf(lockName, end.value)
    } else if (!mayWait || !isPassing(end.reason)) throw end.reason
  }
  return undefined
}

/** What a claim that waits asks again after: an outage of a moment ends no wait, here as with a single lock. */
const isPassing = (error: unknown): boolean => error instanceof StoreError && error.retryable

const claim = ({ claims, holder, together }: Taking, request: ClaimRequest): Promise<ClaimResult> =>
  claims.claim(holder, { ...request, together })

const discard = (leases: readonly HeldLease[]): Promise<unknown> => Promise.all(leases.map((lease) => lease.discard()))
