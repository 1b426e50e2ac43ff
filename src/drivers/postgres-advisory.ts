import { checkInspectQuery, checkWhole } from '../core/arguments.ts'
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
import { settlesWithin } from '../core/time/abort.ts'
import { systemClock } from '../core/time/clock.ts'
import { connectionsOf, openConnections, type PostgresClient } from './postgres/client.ts'
import { createSerialQueue, type PostgresConnections, type SerialQueue } from './postgres/connections.ts'
import { storeErrorFrom } from './postgres/errors.ts'
import { postgresUrl } from './postgres/url.ts'
import { acquire, grantOf } from './postgres-advisory/acquire.ts'
import { forceRelease } from './postgres-advisory/force-release.ts'
import { advisoryKey, releaseRequestKey, type SessionLease } from './postgres-advisory/held-locks.ts'
import { inspectLocks } from './postgres-advisory/inspect.ts'
import { occupy } from './postgres-advisory/lock-in-transaction.ts'
import { Session } from './postgres-advisory/session.ts'
import { WaitingSessions } from './postgres-advisory/waiting-sessions.ts'

export type { PgClient, PgPool, PostgresClient, PostgresSql } from './postgres/client.ts'
export type { PostgresTransaction } from './postgres/transaction.ts'
export { advisoryKey } from './postgres-advisory/held-locks.ts'
export {
  type LockInTransactionOptions,
  lockInTransaction,
  type TryLockInTransactionOptions,
  tryLockInTransaction,
} from './postgres-advisory/lock-in-transaction.ts'

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
  force: 'call',
  groups: false,
  reasons: {
    limit:
      'an advisory lock is free, shared or exclusive, and the server does not count. The postgres driver has limits',
    rate: 'it stores nothing that could be counted. The postgres driver has them',
    force:
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
  const driver = driverOn(connections, { ...rest, maxWaitingConnections: 0, isCallers: true })
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

interface CallersConnection {
  /** There is only one connection, the caller's own. */
  readonly isCallers?: boolean
}

function driverOn(
  connections: PostgresConnections,
  { maxWaitingConnections = 8, isCallers = false }: Omit<PostgresAdvisoryDriverOptions, 'client'> & CallersConnection,
): Driver {
  checkWhole('maxWaitingConnections', maxWaitingConnections, 0, 100)
  const listeners = new Set<DriverListener>()
  /** It has the locks that were free when they were requested. */
  let openedMain: Session | undefined
  let openingMain: Promise<Session> | undefined
  const waiting = new WaitingSessions({
    open: openSession,
    cancel: async (session) => (await main()).cancelWait(session),
    maxSessions: maxWaitingConnections,
    granted: reportGrant,
  })
  const queue = createSerialQueue()
  const mainIfOpen = (): Session | undefined => (openedMain?.lost === undefined ? openedMain : undefined)
  const sessions = (): Session[] => [mainIfOpen() ?? [], waiting.sessions].flat()
  let closed = false
  let hasOpened = false
  /** Locks on one connection were seen to exclude another one. A connection of the caller is the only one. */
  let isProved = false

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

  /** The main session. It is opened when it is first needed, and again after it was lost. */
  async function main(): Promise<Session> {
    for (;;) {
      const open = mainIfOpen()
      if (open !== undefined) return open
      if (closed) throw new ClosedError('the postgres-advisory driver is closed')
      openingMain ??= openMain().finally(() => {
        openingMain = undefined
      })
      openedMain = await openingMain
    }
  }

  /** Opens a second session, too, for the first claim that waits. That claim reports a failure. */
  async function openMain(): Promise<Session> {
    const session = await openSession()
    // One after the other: while one is checked for a pooler, the other must not interfere.
    const isNeeded = !isCallers && (!isProved || waiting.isEmpty)
    const second = isNeeded ? await openSession().catch(() => undefined) : undefined
    if (second === undefined) return session
    try {
      if (!isProved) await session.proveExclusion(second)
      isProved = true
    } catch (error) {
      await Promise.allSettled([session.end(), second.end()]) // The first error is the one to report.
      throw storeErrorFrom(error, connections)
    }
    waiting.keep(second)
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
      listener.wake({ claimId: claim.claimId })
    }
  }

  async function whileOpen<T>(work: () => Promise<T>): Promise<T> {
    try {
      if (closed) throw new ClosedError('the postgres-advisory driver is closed')
      return await work()
    } catch (error) {
      throw storeErrorFrom(error, connections)
    }
  }

  /** Runs calls one after the other: what a call decides about a connection must not change while it is in flight. */
  const inTurn: SerialQueue = (work) => queue(() => whileOpen(work))

  function sessionOf({ claimId, fencingToken }: LeaseRef): Session | undefined {
    for (const session of sessions()) {
      const lease = session.lost === undefined ? session.leases.get(claimId) : undefined
      if (lease !== undefined && (fencingToken === undefined || lease.fencingToken === fencingToken)) return session
    }
    return undefined
  }

  /** A session that still exists has all of its leases. So each session is asked once, however many it has. */
  async function renewAll(renewals: readonly Renewal[]): Promise<RenewAnswer[]> {
    for (const renewal of renewals) waiting.settled(renewal)
    const asked = [...new Set(renewals.map(sessionOf))].filter((session) => session !== undefined)
    const raised = await Promise.all(
      asked.map((session) =>
        // One that was lost is asked for nothing.
        session.prove().catch((error: unknown) => {
          if (session.lost === undefined) throw error
          return false
        }),
      ),
    )
    const one = asked[raised.indexOf(true)]
    if (one !== undefined) await endRequested(one)
    return renewals.map((renewal) => (sessionOf(renewal) === undefined ? 'lost' : 'held'))
  }

  /**
   * Ends the leases that other clients ask this process to let go of. The server says who asks, and only a role that
   * could end the session counts. So this is no message that could be forged.
   */
  async function endRequested(session: Session): Promise<void> {
    // The next renewal looks again.
    const requests = await session.releaseRequests().catch(() => new Map<string, string>())
    const leases = sessions().flatMap((each) => [...each.leases.values()])
    const ended = leases.filter((lease) => requests.has(releaseRequestKey(lease)))
    for (const lease of ended) {
      reportLost(lease.claimId, new StoreError(`the role ${requests.get(releaseRequestKey(lease))} ended it`))
    }
    if (ended.length > 0) await releaseAll(ended)
  }

  async function releaseAll(leases: readonly LeaseRef[]): Promise<boolean[]> {
    const ends = new Map<Session, Set<SessionLease>>()
    const found: (SessionLease | undefined)[] = []
    for (const ref of leases) {
      if (ref.fencingToken === undefined) await waiting.stop(ref)
      const session = sessionOf(ref)
      const lease = session?.leases.get(ref.claimId)
      found.push(lease)
      if (session !== undefined && lease !== undefined) ends.set(session, (ends.get(session) ?? new Set()).add(lease))
    }
    const released = new Set<SessionLease | undefined>()
    await Promise.all(
      [...ends].map(async ([session, ending]) => {
        const answers = await session.unlock([...ending])
        for (const [index, lease] of [...ending].entries()) if (answers[index]) released.add(lease)
      }),
    )
    waiting.reuseReleased()
    // The first of equal entries ended the lease.
    return found.map((lease) => released.delete(lease))
  }

  async function forceReleaseAll(
    leases: readonly LeaseRecord[],
    options: ForceOptions,
  ): Promise<readonly (boolean | Error)[]> {
    const own = new Set(leases.filter((lease) => sessionOf(lease) !== undefined))
    const others = leases.filter((lease) => !own.has(lease))
    const parts = { connections, session: await main() }
    const answers = others.length === 0 ? [] : await forceRelease(parts, others, options)
    // Core releases a lease that it has lost.
    for (const { claimId } of own) reportLost(claimId, new StoreError(`it was ended by ${options.by}`))
    if (own.size > 0) await inTurn(() => releaseAll([...own]))
    return leases.map((lease) => own.has(lease) || (answers[others.indexOf(lease)] ?? false))
  }

  return {
    name: 'postgres-advisory',
    place: connections.place,
    capabilities,

    acquire: (claims) => whileOpen(() => acquire(claims, { main, mainIfOpen, waiting, inTurn })),
    renew: (renewals) => inTurn(() => renewAll(renewals)),
    release: (leases) => inTurn(() => releaseAll(leases)),

    async inspect(query) {
      const checked = checkInspectQuery(query)
      const keys = checked.lockName === undefined ? undefined : [advisoryKey(checked.lockName)]
      return inTurn(async () => inspectLocks(checked, await (await main()).locks(keys)))
    },

    listen: (listener) =>
      whileOpen(async () => {
        listeners.add(listener)
        return async () => void listeners.delete(listener)
      }),

    async close() {
      if (closed) return
      closed = true
      listeners.clear()
      // Bounded, because a server that does not answer would keep the connections open until its calls time out.
      const settled = queue(async () => {})
      await settlesWithin(systemClock, MAX_SETTLE_MS, settled)
      await waiting.close()
      // One that failed to open needs no closing.
      const last = mainIfOpen() ?? (await openingMain?.catch(() => undefined))
      await last?.end().catch(() => {}) // It is not used any more, even if closing fails.
      await connections.close()
    },

    extensions: {
      forceRelease: (leases, options) => whileOpen(() => forceReleaseAll(leases, options)),
    },
  }
}

/** How long closing waits for the calls in flight. */
const MAX_SETTLE_MS = 1_000
