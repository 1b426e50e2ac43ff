import type { AcquireAnswer, Claim, Grant } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { systemClock } from '../../core/time/clock.ts'
import type { Row, SerialQueue } from '../postgres/connections.ts'
import { advisoryKey, type LockRequest, type SessionLease } from './held-locks.ts'
import { holderOf } from './inspect.ts'
import type { Session } from './session.ts'
import type { WaitingSessions } from './waiting-sessions.ts'

export interface AcquireParts {
  /** Opens the main session if necessary. */
  main(): Promise<Session>
  /** The main session, if it is open. */
  mainIfOpen(): Session | undefined
  readonly waiting: WaitingSessions
  readonly inTurn: SerialQueue
}

/** Takes the locks that are free on the main session. Other claims that wait do so on sessions of their own. */
export async function acquire(
  claims: readonly Claim[],
  parts: AcquireParts,
): Promise<readonly (AcquireAnswer | StoreError)[]> {
  if (claims.length === 0) return []
  const { inTurn, waiting } = parts
  const attempts = await inTurn(() => takeAll(claims, parts))
  const refused = attempts.filter(({ lease }) => lease === undefined)
  const rows = refused.length === 0 ? [] : await holdersOf(refused, parts)
  return attempts.map(({ claim, lease: taken, queued }): AcquireAnswer | StoreError => {
    // Its connection may have ended meanwhile. That was reported when core did not know of the lease yet.
    const lease = leaseOf(claim, parts)
    if (lease !== undefined) {
      waiting.settled(claim)
      return grantOf(claim, lease)
    }
    if (taken !== undefined) return new StoreError(`the connection that was granted "${claim.lockName}" has ended`)
    const holder = holderOf(claim.lockName, rows)
    const askAgainMs = claim.waiterTtlMs === 0 ? undefined : ASK_AGAIN_MS[queued]
    // Grants are reported as they happen, so each one after this answer is newer: a time of 0 says so.
    return { granted: false, answeredAtMs: 0, ...(holder && { holder }), ...(askAgainMs && { askAgainMs }) }
  })
}

/** A claim, and how far it has come. */
interface Attempt {
  readonly claim: Claim
  readonly request: LockRequest
  lease: SessionLease | undefined
  /** Whether a connection waits for it: one that has waited for this lock before (`again`), or another (`first`). */
  queued: 'again' | 'first' | 'no'
}

const leaseOf = (claim: Claim, { mainIfOpen, waiting }: AcquireParts): SessionLease | undefined =>
  waiting.leaseOf(claim) ?? mainIfOpen()?.leases.get(claim.claimId)

async function takeAll(claims: readonly Claim[], parts: AcquireParts): Promise<Attempt[]> {
  const { main, waiting } = parts
  const attempts = claims.map((claim): Attempt => {
    const request = requestOf(claim)
    // A claim that has its lease is not queued: it would wait for itself, or get a second lease.
    const lease = leaseOf(claim, parts)
    // It asks, so it is not dead. The other claims of the list may take longer than its place lasts.
    if (lease !== undefined) waiting.settled(claim)
    const isQueued =
      lease === undefined && claim.waiterTtlMs > 0 && waiting.hasWaitedFor(request) && waiting.start(claim, request)
    return { claim, request, lease, queued: isQueued ? 'again' : 'no' }
  })
  const untried = attempts.filter(({ lease, queued }) => lease === undefined && queued === 'no')
  const leases = untried.length === 0 ? [] : await (await main()).try(untried.map(({ request }) => request))
  for (const [index, each] of untried.entries()) {
    const { claim, request } = each
    each.lease = leases[index]
    // Granted here, while a connection may still be waiting for it.
    if (each.lease !== undefined) await waiting.drop(claim)
    // A queued claim is notified of its grant. One for which no connection is left has to poll.
    else if (claim.waiterTtlMs > 0 && waiting.start(claim, request)) each.queued = 'first'
  }
  return attempts
}

/**
 * The locks that prevented these claims from being granted. Waits, for a bounded time, until the claims that are queued
 * are visible in the server's queue: others must be able to see a waiter once its claim is answered.
 */
async function holdersOf(refused: readonly Attempt[], { main, waiting }: AcquireParts): Promise<readonly Row[]> {
  const queued = refused.filter((each) => each.queued !== 'no').map(({ claim }) => claim)
  const untilMs = systemClock.now().monotonicMs + MAX_VISIBLE_MS
  await waiting.sent(queued, MAX_SENT_MS)
  for (let pollMs = POLL_MS; ; pollMs *= 2) {
    // Each is on its way into the queue, or to a lock that has become free.
    await waiting.served(queued, pollMs)
    // A lock that was waited for before changes hands often. Mostly its turn comes before the answer would be of use.
    const shown = refused.filter((each) => each.queued !== 'again' && waiting.leaseOf(each.claim) === undefined)
    const keys = shown.map(({ request }) => request.key)
    if (keys.length === 0) return []
    const rows = await (await main()).locks(keys)
    const visible = new Set(rows.map((row) => row['pid']))
    const areVisible = waiting.pidsOf(shown.map(({ claim }) => claim)).every((pid) => visible.has(pid))
    if (areVisible || systemClock.now().monotonicMs > untilMs) return rows
  }
}

const requestOf = ({ lockName, claimId, holderId, mode }: Claim): LockRequest => ({
  lockName,
  claimId,
  holderId,
  shared: mode === 'shared',
  key: advisoryKey(lockName),
})

export const grantOf = ({ ttlMs }: Claim, { fencingToken, acquiredAtMs }: SessionLease): Grant => ({
  granted: true,
  fencingToken,
  ttlMs,
  acquiredAtMs,
})

/** When a waiter asks again: one for which no connection was left, and one that has not been given the holder yet. */
const ASK_AGAIN_MS = { no: 100, again: 50, first: undefined }

/** How long a refusal waits for a connection to wait with, and until others can see it in the server's queue. */
const MAX_SENT_MS = 50
const MAX_VISIBLE_MS = 1_000
const POLL_MS = 2
