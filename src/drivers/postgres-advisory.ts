import { checkInspectQuery } from '../core/arguments.ts'
import type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  DriverListener,
  Grant,
  LeaseRef,
  RenewAnswer,
} from '../core/driver.ts'
import { ClosedError, InvalidArgumentError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { type Clock, systemClock } from '../core/time/clock.ts'
import { settlesWithin } from '../core/time/timeout.ts'
import { connectionsOf, openConnections, type PostgresClient } from './postgres/client.ts'
import type { PostgresConnections, Row } from './postgres/connections.ts'
import { storeErrorFrom } from './postgres/errors.ts'
import { createLine } from './postgres/serial-queue.ts'
import { postgresUrl } from './postgres/url.ts'
import { occupy } from './postgres-advisory/client.ts'
import { holderOf, inspectLocks } from './postgres-advisory/inspect.ts'
import { advisoryKey } from './postgres-advisory/key.ts'
import { MainSession } from './postgres-advisory/main-session.ts'
import { type Asking, Session, type SessionLease } from './postgres-advisory/session.ts'
import { AdvisoryWaiting } from './postgres-advisory/waiting.ts'

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
  groups: false,
  reasons: {
    limit:
      'an advisory lock is free, shared or exclusive, and the server does not count. The postgres driver has limits',
    rate: 'it stores nothing that could be counted. The postgres driver has them',
    steal: 'the server gives a session lock to nobody else before its session ends',
  },
}

export interface PostgresAdvisoryDriverOptions {
  /**
   * A `Pool` of pg, or what `postgres()` gives: its settings, for connections of our own beside it. A connected
   * `Client` of pg is itself the one connection, so with it nobody is woken: waiters poll. It can have one driver at a
   * time, and `lockInTransaction` refuses it as long.
   */
  readonly client: PostgresClient
  /**
   * How many lock names this driver can wait for at once in the server's own queue, a connection each; beyond that,
   * waiters poll. 8 if not said.
   */
  readonly maxWaitingConnections?: number
}

const OPTIONS = optionNames<PostgresAdvisoryDriverOptions>({ client: true, maxWaitingConnections: true })

/**
 * Session-level advisory locks: no table, and a lease lasts exactly as long as its connection. Nothing is sent before
 * the first call.
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

/** `postgres+advisory://…`, with parameters that the client knows, as in a `postgres://` URL. */
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
  const waiting = new AdvisoryWaiting({
    clock,
    open: openSession,
    cancel: async (session) => (await main.get()).cancelWait(session),
    most: maxWaitingConnections,
    granted: tellGranted,
  })
  const line = createLine()
  let closed = false
  let hasOpened = false

  async function openSession(): Promise<Session> {
    const tellLost = (lost: Session, cause: Error): void => {
      const error = storeErrorFrom(cause, connections)
      for (const { claimId } of [...lost.leases.values()]) {
        for (const listener of [...listeners]) listener.lost(claimId, error)
      }
    }
    try {
      const session = await Session.open(connections, tellLost)
      hasOpened = true
      return session
    } catch (error) {
      // A server that gave sessions before, and is a standby now, was demoted: the address may lead to the next primary.
      throw storeErrorFrom(error, { place: connections.place, hasWritten: hasOpened })
    }
  }

  /**
   * With a second one at hand, for whoever is the first to wait. If that cannot be opened, whoever waits will try again
   * and be told.
   */
  async function openMain(): Promise<Session> {
    const session = await openSession()
    // Not at the same time: what one finds out about a pooler must not be disturbed by the other.
    await waiting.prepare().catch(() => {})
    return session
  }

  function tellGranted(claim: Claim, lease: SessionLease, keptMs: number): void {
    const grant = { ...grantOf(claim, lease), ttlMs: Math.min(claim.ttlMs, keptMs) }
    for (const listener of [...listeners]) {
      listener.granted(claim.claimId, grant)
      // A claim that is just asking takes no grant, and the answer to its question may be older than this one.
      listener.wake(claim.lockName, claim.claimId)
    }
  }

  function sessionOf({ claimId, fencingToken }: LeaseRef): Session | undefined {
    for (const session of [...(main.now ? [main.now] : []), ...waiting.sessions]) {
      const lease = session.lost === undefined ? session.leases.get(claimId) : undefined
      if (lease !== undefined && (fencingToken === undefined || lease.fencingToken === fencingToken)) return session
    }
    return undefined
  }

  /**
   * One call after the other: what is decided here about a connection must not change while the connection is asked.
   */
  async function inTurn<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await line(async () => {
        if (closed) throw new ClosedError('the postgres-advisory driver is closed')
        return work()
      })
    } catch (error) {
      throw storeErrorFrom(error, connections)
    }
  }

  /** Takes what is free, and stands in line for the rest of those that wait. */
  async function takeAll(claims: readonly Claim[]): Promise<Taken[]> {
    const taken = claims.map((claim): Taken => {
      const asking = askingOf(claim)
      // Whatever it has already: one that stood in line once more would wait for its own lock, or get a second lease
      // that nobody releases.
      const lease = waiting.leaseOf(claim) ?? main.now?.leases.get(claim.claimId)
      const known = lease === undefined && claim.waitMs > 0 && waiting.knows(asking) && waiting.start(claim, asking)
      return { claim, asking, lease, place: known ? 'known' : 'none' }
    })
    const fresh = taken.filter(({ lease, place }) => lease === undefined && place === 'none')
    const tried = fresh.length === 0 ? [] : await main.try(fresh)
    for (const [index, each] of fresh.entries()) {
      const { claim, asking } = each
      each.lease = tried[index]
      // Got here while a connection stood in line for it: that one need not stand there any more.
      if (each.lease !== undefined) await waiting.drop(claim)
      // In the server's queue it is told; without a place there it has to look for itself.
      else if (claim.waitMs > 0 && waiting.start(claim, asking)) each.place = 'new'
    }
    return taken
  }

  /**
   * Who holds what was refused. Whoever waits is told so when it stands in the server's queue, where others can see it;
   * within a bound.
   */
  async function locksOf(refused: readonly Taken[]): Promise<readonly Row[]> {
    const standing = refused.filter(({ place }) => place !== 'none').map(({ claim }) => claim)
    const untilMs = clock.now().monotonicMs + SEEN_MS
    await waiting.sent(standing, STANDING_MS)
    for (;;) {
      // On its way to the queue, or to a lock that is free.
      await waiting.served(standing, SEEN_AGAIN_MS)
      // For a name that is known to change hands nobody is asked yet: mostly its turn comes before that would be of
      // use.
      const asked = refused.filter(({ claim, place }) => place !== 'known' && waiting.leaseOf(claim) === undefined)
      const keys = asked.map(({ asking }) => asking.key)
      if (keys.length === 0) return []
      const rows = await (await main.get()).locks(keys)
      const seen = new Set(rows.map((row) => row['pid']))
      const isSeen = waiting.pidsOf(asked.map(({ claim }) => claim)).every((pid) => seen.has(pid))
      if (isSeen || clock.now().monotonicMs > untilMs) return rows
    }
  }

  return {
    name: 'postgres-advisory',
    place: connections.place,
    capabilities,

    async acquire(claims) {
      if (claims.length === 0) return []
      const taken = await inTurn(() => takeAll(claims))
      const refused = taken.filter(({ lease }) => lease === undefined)
      const rows = refused.length === 0 ? [] : await locksOf(refused).catch(rethrow)
      return taken.map(({ claim, lease = waiting.leaseOf(claim), place }): AcquireAnswer => {
        if (lease !== undefined) {
          waiting.settled(claim)
          return grantOf(claim, lease)
        }
        const holder = holderOf(claim.lockName, rows)
        const askAgainMs = claim.waitMs === 0 ? undefined : ASK_AGAIN_MS[place]
        // What is granted from now on is told from now on, and in order: no grant that is heard of after this answer is
        // older than it.
        return { granted: false, answeredAtMs: 0, ...(holder && { holder }), ...(askAgainMs && { askAgainMs }) }
      })
    },

    renew: (renewals) =>
      inTurn(async () => {
        const sessions = renewals.map(sessionOf)
        for (const renewal of renewals) waiting.settled(renewal)
        const proofs = new Map<Session | undefined, Promise<RenewAnswer>>([[undefined, Promise.resolve('lost')]])
        for (const session of sessions) {
          if (session !== undefined && !proofs.has(session)) proofs.set(session, proofOf(session))
        }
        return Promise.all(sessions.map((session) => proofs.get(session) as Promise<RenewAnswer>))
      }),

    release: (leases) =>
      inTurn(async () => {
        const answers = leases.map(() => false)
        /** For each session the leases that end, and the place in the list of who is answered for each. */
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
            for (const [place, index] of [...ending.values()].entries()) answers[index] = released[place] === true
          }),
        )
        waiting.tidy()
        return answers
      }),

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

    async close() {
      if (closed) return
      closed = true
      listeners.clear()
      // A server that does not answer would otherwise keep the connections open until its questions have run out of time.
      await settlesWithin(
        clock,
        SETTLE_MS,
        line(async () => {}),
      )
      await waiting.close()
      await main.close()
      await connections.close()
    },
  }
}

/** A claim, and what has become of it so far. */
interface Taken {
  readonly claim: Claim
  readonly asking: Asking
  lease: SessionLease | undefined
  /** Whether a connection stands in line for it: one that has done so for this name before, or another one. */
  place: 'known' | 'new' | 'none'
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

function rethrow(error: unknown): never {
  throw storeErrorFrom(error)
}

const askingOf = ({ lockName, claimId, holderId, mode }: Claim): Asking => ({
  lockName,
  claimId,
  holderId,
  shared: mode === 'shared',
  key: advisoryKey(lockName),
})

const grantOf = ({ ttlMs }: Claim, { fencingToken, acquiredAtMs }: SessionLease): Grant => ({
  granted: true,
  fencingToken,
  ttlMs,
  acquiredAtMs,
})

/**
 * When a waiter looks again: one that found all waiting connections in use, and one that was not told yet who holds
 * what it waits for.
 */
const ASK_AGAIN_MS = { none: 100, known: 50, new: undefined }
/** How long closing waits for what was asked before. */
const SETTLE_MS = 1_000

/**
 * How long a refusal waits at the most for a connection to stand in line with, and for others to be able to see that it
 * stands there.
 */
const STANDING_MS = 50
const SEEN_MS = 1_000
const SEEN_AGAIN_MS = 2
