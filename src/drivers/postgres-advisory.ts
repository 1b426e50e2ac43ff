import { checkInspectQuery } from '../core/arguments.ts'
import type {
  Capabilities,
  Claim,
  Driver,
  DriverListener,
  ForceOptions,
  LeaseRecord,
  LeaseRef,
  RenewAnswer,
  Renewal,
} from '../core/driver.ts'
import { ClosedError, InvalidArgumentError, StoreError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { type Clock, systemClock } from '../core/time/clock.ts'
import { settlesWithin } from '../core/time/timeout.ts'
import { connectionsOf, openConnections, type PostgresClient } from './postgres/client.ts'
import type { PostgresConnections } from './postgres/connections.ts'
import { storeErrorFrom } from './postgres/errors.ts'
import { createSerialQueue } from './postgres/serial-queue.ts'
import { postgresUrl } from './postgres/url.ts'
import { acquire, grantOf } from './postgres-advisory/acquire.ts'
import { BreakRequests } from './postgres-advisory/break-requests.ts'
import { forceRelease } from './postgres-advisory/force-release.ts'
import type { SessionLease } from './postgres-advisory/held-locks.ts'
import { inspectLocks } from './postgres-advisory/inspect.ts'
import { advisoryKey } from './postgres-advisory/key.ts'
import { MainSession } from './postgres-advisory/main-session.ts'
import { occupy } from './postgres-advisory/occupied-clients.ts'
import { Session } from './postgres-advisory/session.ts'
import { WaitingSessions } from './postgres-advisory/waiting-sessions.ts'
import { LossPoll } from './shared/loss-poll.ts'

export type { PgClient, PgPool, PostgresClient, PostgresSql } from './postgres/client.ts'
export type { PostgresTransaction } from './postgres/transaction.ts'
export { advisoryKey } from './postgres-advisory/key.ts'
export { type LockInTransactionOptions, lockInTransaction } from './postgres-advisory/lock-in-transaction.ts'

export const capabilities: Capabilities = {
  expiry: 'session',
  scope: 'network',
  fencing: true,
  shared: true,
  limit: false,
  queue: false,
  wake: true,
  metadata: false,
  rate: false,
  steal: false,
  force: true,
  groups: false,
  reasons: {
    limit:
      'an advisory lock is free, shared or exclusive, and the server does not count. The postgres driver has limits',
    rate: 'it stores nothing that could be counted. The postgres driver has them',
    steal:
      'the server gives a session lock to no other session before its own has let go. forceRelease asks it to let go',
  },
}

export interface PostgresAdvisoryDriverOptions {
  /**
   * A `Pool` of the package pg, or what `postgres()` of the package postgres returns. The driver opens connections of
   * its own with the same settings.
   *
   * A connected `Client` of pg is itself the one connection. Then waiters poll. A `Client` can have one driver at a
   * time, and `lockInTransaction` refuses it until that driver is closed.
   */
  readonly client: PostgresClient
  /**
   * For how many lock names this driver can wait at once in the server's own queue, with one connection each. Beyond
   * that, waiters poll. From 0 to 100.
   * @default 8
   */
  readonly maxWaitingConnections?: number
}

const OPTIONS = optionNames<PostgresAdvisoryDriverOptions>({ client: true, maxWaitingConnections: true })

/**
 * A driver on session-level advisory locks. It needs no table, and a lease lasts exactly as long as its connection. It
 * sends nothing before the first call.
 *
 * @throws `InvalidArgumentError` if `client` is not one of the known clients or already has such a driver, or an option
 * is unknown or has a wrong value.
 *
 * @example
 * ```ts
 * const pool = new pg.Pool({ connectionString: 'postgres://app@db.example/shop' })
 * const lock = new DistributedLock({ driver: postgresAdvisoryDriver({ client: pool }) })
 * ```
 */
export function postgresAdvisoryDriver(options: PostgresAdvisoryDriverOptions): Driver {
  const { client, ...rest } = checkOptions(options, OPTIONS)
  const connections = connectionsOf(client)
  if (!('connectionParameters' in client)) return driverOn(connections, rest)
  const leave = occupy(client)
  const driver = driverOn(connections, { ...rest, maxWaitingConnections: 0 })
  const close = (): Promise<void> => driver.close().finally(leave)
  return { ...driver, close }
}

/**
 * Opens a driver for a `postgres+advisory://…` URL, with the client's own parameters, as in a `postgres://` URL.
 *
 * @throws `InvalidArgumentError` if some part of the URL is not understood.
 * @throws `MissingClientError` if neither pg nor postgres is installed.
 */
export async function openPostgresAdvisory(url: string): Promise<Driver> {
  const { target, options } = postgresUrl(url)
  const [unused] = Object.keys(options)
  if (unused !== undefined) {
    throw new InvalidArgumentError('url parameter', `holdfast_${unused}`, 'left out: advisory locks have no tables')
  }
  return driverOn(await openConnections(target), {})
}

function driverOn(
  connections: PostgresConnections,
  { maxWaitingConnections = 8 }: Omit<PostgresAdvisoryDriverOptions, 'client'>,
  clock: Clock = systemClock,
): Driver {
  if (!Number.isInteger(maxWaitingConnections) || maxWaitingConnections < 0 || maxWaitingConnections > 100) {
    throw new InvalidArgumentError('maxWaitingConnections', maxWaitingConnections, 'a whole number from 0 to 100')
  }
  const listeners = new Set<DriverListener>()
  const main = new MainSession(openMain)
  const waiting = new WaitingSessions({
    clock,
    open: openSession,
    cancel: async (session) => (await main.get()).cancelWait(session),
    maxSessions: maxWaitingConnections,
    granted: reportGrant,
  })
  const queue = createSerialQueue()
  const sessions = (): Session[] => [...(main.current ? [main.current] : []), ...waiting.sessions]
  const breakRequests = new BreakRequests({
    session: () => main.current,
    leases: () => sessions().flatMap(({ leases }) => [...leases.values()]),
    end: (lease, cause) =>
      inTurn(() => {
        reportLost(lease.claimId, cause)
        return releaseAll([lease])
      }),
  })
  const lossPoll = new LossPoll({
    clock,
    everyMs: LOSS_POLL_MS,
    look: (watchers) =>
      breakRequests.look(watchers).catch((error: unknown) => {
        throw storeErrorFrom(error, connections)
      }),
  })
  let closed = false
  let hasOpened = false

  async function openSession(): Promise<Session> {
    const reportLoss = (lost: Session, cause: Error): void => {
      const error = storeErrorFrom(cause, connections)
      for (const { claimId } of [...lost.leases.values()]) reportLost(claimId, error)
    }
    try {
      const session = await Session.open(connections, reportLoss)
      hasOpened = true
      return session
    } catch (error) {
      // A server that was a primary before and is a standby now was demoted: the address may lead to the new primary.
      throw storeErrorFrom(error, { place: connections.place, hasWritten: hasOpened })
    }
  }

  /**
   * Opens a second session, too, for the first claim that has to wait. If that fails, that claim tries again and gets
   * the error.
   */
  async function openMain(): Promise<Session> {
    const session = await openSession()
    // One after the other: while one is checked for a pooler, the other must not interfere.
    await waiting.prepare().catch(() => {})
    return session
  }

  /** Every holder of a lease listens, so it loses the lease at once. */
  function reportLost(claimId: string, cause: Error): void {
    for (const listener of [...listeners]) listener.lost(claimId, cause)
  }

  function reportGrant(claim: Claim, lease: SessionLease, keptMs: number): void {
    const grant = { ...grantOf(claim, lease), ttlMs: Math.min(claim.ttlMs, keptMs) }
    for (const listener of [...listeners]) {
      listener.granted(claim.claimId, grant)
      // A claim whose call is in flight ignores the grant, and the answer to that call may be older than the grant.
      listener.wake(claim.lockName, claim.claimId)
    }
  }

  /** Runs calls one after the other: what a call decides about a connection must not change while it is in flight. */
  async function inTurn<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await queue(async () => {
        if (closed) throw new ClosedError('the postgres-advisory driver is closed')
        return work()
      })
    } catch (error) {
      throw storeErrorFrom(error, connections)
    }
  }

  function sessionOf({ claimId, fencingToken }: LeaseRef): Session | undefined {
    for (const session of sessions()) {
      const lease = session.lost === undefined ? session.leases.get(claimId) : undefined
      if (lease !== undefined && (fencingToken === undefined || lease.fencingToken === fencingToken)) return session
    }
    return undefined
  }

  /** A session that still exists has all of its leases. So each session is asked once, however many it has. */
  async function renewAll(renewals: readonly Renewal[]): Promise<RenewAnswer[]> {
    const sessions = renewals.map(sessionOf)
    for (const renewal of renewals) waiting.settled(renewal)
    const proofs = new Map<Session | undefined, Promise<RenewAnswer>>([[undefined, Promise.resolve('lost')]])
    for (const session of sessions) {
      if (session !== undefined && !proofs.has(session)) proofs.set(session, proofOf(session))
    }
    return Promise.all(sessions.map((session) => proofs.get(session) as Promise<RenewAnswer>))
  }

  async function releaseAll(leases: readonly LeaseRef[]): Promise<boolean[]> {
    const answers = leases.map(() => false)
    /** For each session the leases to end, and the position in the answer for each of them. */
    const ends = new Map<Session, Map<SessionLease, number>>()
    for (const [index, ref] of leases.entries()) {
      if (ref.fencingToken === undefined) await waiting.stop(ref)
      const session = sessionOf(ref)
      const lease = session?.leases.get(ref.claimId)
      if (session === undefined || lease === undefined) continue
      const ending = ends.get(session) ?? new Map<SessionLease, number>()
      ends.set(session, ending)
      if (!ending.has(lease)) ending.set(lease, index)
    }
    await Promise.all(
      [...ends].map(async ([session, ending]) => {
        const released = await session.unlock([...ending.keys()])
        for (const [position, index] of [...ending.values()].entries()) answers[index] = released[position] === true
      }),
    )
    waiting.reuseReleased()
    return answers
  }

  async function forceReleaseAll(
    leases: readonly LeaseRecord[],
    options: ForceOptions,
  ): Promise<readonly (boolean | Error)[]> {
    const isOwn = leases.map((lease) => sessionOf(lease) !== undefined)
    const others = leases.filter((_, at) => !isOwn[at])
    const parts = { connections, clock, session: await main.get() }
    const answers = (others.length === 0 ? [] : await forceRelease(parts, others, options)).values()
    const error = new StoreError(`it was ended by ${options.by}`)
    for (const [at, { claimId }] of leases.entries()) {
      // Core releases a lease that it has lost.
      if (isOwn[at]) reportLost(claimId, error)
    }
    const own = leases.filter((_, at) => isOwn[at])
    if (own.length > 0) await inTurn(() => releaseAll(own))
    return isOwn.map((is) => is || (answers.next().value ?? false))
  }

  return {
    name: 'postgres-advisory',
    place: connections.place,
    capabilities,

    acquire: (claims) => acquire(claims, { clock, main, waiting, inTurn }),
    renew: (renewals) => inTurn(() => renewAll(renewals)),
    release: (leases) => inTurn(() => releaseAll(leases)),

    async inspect(query) {
      const checked = checkInspectQuery(query)
      const keys = checked.lockName === undefined ? undefined : [advisoryKey(checked.lockName)]
      return inTurn(async () => inspectLocks(checked, await (await main.get()).locks(keys)))
    },

    async listen(listener) {
      if (closed) throw new ClosedError('the postgres-advisory driver is closed')
      listeners.add(listener)
      return async () => {
        listeners.delete(listener)
      }
    },

    watch: (listener) => lossPoll.watch(listener),

    async forceRelease(leases, options) {
      if (closed) throw new ClosedError('the postgres-advisory driver is closed')
      try {
        return await forceReleaseAll(leases, options)
      } catch (error) {
        throw storeErrorFrom(error, connections)
      }
    },

    async close() {
      if (closed) return
      closed = true
      lossPoll.end()
      listeners.clear()
      // Bounded, because a server that does not answer would keep the connections open until its calls time out.
      await settlesWithin(
        clock,
        MAX_SETTLE_MS,
        queue(async () => {}),
      )
      await waiting.close()
      await main.close()
      await connections.close()
    },
  }
}

async function proofOf(session: Session): Promise<RenewAnswer> {
  try {
    await session.prove()
    return 'held'
  } catch (error) {
    if (session.lost === undefined) throw error
    return 'lost'
  }
}

/** How often a holder looks whether it is asked to let go. */
const LOSS_POLL_MS = 500

/** How long closing waits for the calls in flight. */
const MAX_SETTLE_MS = 1_000
