import { setTimeout as sleep } from 'node:timers/promises'
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
import { holderOf, inspectLocks } from './support/postgres-advisory-inspect.ts'
import { advisoryKey } from './support/postgres-advisory-key.ts'
import { AdvisoryWaiting } from './support/postgres-advisory-waiting.ts'
import {
  connectionsOf,
  openConnections,
  type PostgresClient,
  type PostgresConnections,
  type Row,
} from './support/postgres-client.ts'
import { storeErrorFrom } from './support/postgres-errors.ts'
import { type Asking, Session, type SessionLease } from './support/postgres-session.ts'
import { postgresUrl } from './support/postgres-url.ts'

export { advisoryKey } from './support/postgres-advisory-key.ts'
export type { PgClient, PgPool, PostgresClient, PostgresSql } from './support/postgres-client.ts'
export { type LockInTransactionOptions, lockInTransaction } from './support/postgres-lock-in-transaction.ts'
export type { PostgresTransaction } from './support/postgres-transaction.ts'

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
  reasons: {
    limit:
      'an advisory lock is free, shared or exclusive, and the server does not count. The postgres driver has limits',
    rate: 'it stores nothing that could be counted. The postgres driver has them',
    steal: 'the server gives a session lock to nobody else before its session ends',
  },
}

export interface PostgresAdvisoryDriverOptions {
  /**
   * A `Pool` of pg, or what `postgres()` gives: its settings, for connections of our own beside it. A connected `Client` of pg is itself the one connection,
   * so with it nobody is woken: waiters poll.
   */
  readonly client: PostgresClient
  /** How many lock names this driver can wait for at once in the server's own queue, a connection each; beyond that, waiters poll. 8 if not said. */
  readonly maxWaitingConnections?: number
}

/** Session-level advisory locks: no table, and a lease lasts exactly as long as its connection. Nothing is sent before the first call. */
export function postgresAdvisoryDriver({ client, ...options }: PostgresAdvisoryDriverOptions): Driver {
  const isOneConnection = typeof client === 'object' && 'connectionParameters' in client
  return driverOn(connectionsOf(client), isOneConnection ? { ...options, maxWaitingConnections: 0 } : options)
}

/** `postgres+advisory://…`, with all parameters that the client knows. */
export async function openPostgresAdvisory(url: string): Promise<Driver> {
  const { clientUrl } = postgresUrl(url)
  return driverOn(await openConnections(clientUrl), {})
}

function driverOn(
  connections: PostgresConnections,
  { maxWaitingConnections = 8 }: Omit<PostgresAdvisoryDriverOptions, 'client'>,
): Driver {
  if (!Number.isInteger(maxWaitingConnections) || maxWaitingConnections < 0 || maxWaitingConnections > 100) {
    throw new InvalidArgumentError('maxWaitingConnections', maxWaitingConnections, 'a whole number from 0 to 100')
  }
  const listeners = new Set<DriverListener>()
  const waiting = new AdvisoryWaiting({
    open: openSession,
    cancel: async (session) => (await mainSession(true)).cancelWait(session),
    most: maxWaitingConnections,
    granted: tellGranted,
  })
  let main: Promise<Session> | undefined
  let closed = false

  function openSession(): Promise<Session> {
    return Session.open(connections, (lost, cause) => {
      const error = storeErrorFrom(cause)
      for (const { claimId } of [...lost.leases.values()]) {
        for (const listener of [...listeners]) listener.lost(claimId, error)
      }
    })
  }

  /** With a second one at hand, for whoever is the first to wait. */
  async function openMain(): Promise<Session> {
    const session = await openSession()
    // Not at the same time: what one finds out about a pooler must not be disturbed by the other.
    await waiting.prepare().catch(() => {})
    return session
  }

  /** The one connection that carries the locks that were free when asked for. */
  async function mainSession(isClosing = false): Promise<Session> {
    if (closed && !isClosing) throw new ClosedError('the postgres-advisory driver is closed')
    main ??= openMain()
    const opening = main
    try {
      const session = await opening
      if (session.lost === undefined) return session
    } catch (error) {
      if (main === opening) main = undefined
      throw storeErrorFrom(error)
    }
    if (main === opening) main = undefined
    return mainSession()
  }

  function tellGranted(claim: Claim, lease: SessionLease, keptMs: number): void {
    const grant = { ...grantOf(claim, lease), ttlMs: Math.min(claim.ttlMs, keptMs) }
    for (const listener of [...listeners]) {
      listener.granted(claim.claimId, grant)
      // A claim that is just asking takes no grant, and the answer to its question may be older than this one.
      listener.wake(claim.lockName, claim.claimId)
    }
  }

  async function openSessions(): Promise<Session[]> {
    const opened = await main?.catch(() => undefined)
    return [...(opened === undefined ? [] : [opened]), ...waiting.sessions].filter(({ lost }) => lost === undefined)
  }

  const sessionOf = async ({ claimId, fencingToken }: LeaseRef): Promise<Session | undefined> =>
    (await openSessions()).find((session) => {
      const lease = session.leases.get(claimId)
      return lease !== undefined && (fencingToken === undefined || lease.fencingToken === fencingToken)
    })

  /** Those that have no lease yet: tried on the main connection, in rounds of distinct keys. */
  async function tryAll(claims: readonly Claim[]): Promise<(SessionLease | undefined)[]> {
    const answers: (SessionLease | undefined)[] = claims.map(() => undefined)
    const left = claims.map((claim, index) => ({ index, asking: askingOf(claim) }))
    while (left.length > 0) {
      const session = await mainSession()
      const round: typeof left = []
      const later: typeof left = []
      const held = new Map([...session.leases.values()].map(({ key, shared }) => [key, shared]))
      for (const each of left.splice(0)) {
        const { key, shared, claimId } = each.asking
        const own = session.leases.get(claimId)
        if (own !== undefined) answers[each.index] = own
        else if (round.some(({ asking }) => asking.key === key)) later.push(each)
        // The server lets one session have one lock any number of times. Who excludes whom within it is decided here.
        else if (!held.has(key) || (held.get(key) && shared)) round.push(each)
      }
      if (round.length > 0) {
        const got = await session.try(round.map(({ asking }) => asking))
        round.forEach(({ index }, place) => {
          answers[index] = got[place]
        })
      }
      left.push(...later)
    }
    return answers
  }

  /** Who holds what was refused. Whoever waits is told so when it stands in the server's queue, where others can see it; within a bound. */
  async function locksOf(refused: readonly Claim[], pids: readonly string[]): Promise<readonly Row[]> {
    if (refused.length === 0) return []
    const session = await mainSession()
    const keys = refused.map(({ lockName }) => advisoryKey(lockName))
    const untilMs = performance.now() + SEEN_MS
    for (;;) {
      const rows = await session.locks(keys)
      const seen = new Set(rows.map((row) => row['pid']))
      if (performance.now() > untilMs || pids.every((pid) => seen.has(pid))) return rows
      await sleep(2)
    }
  }

  /** One call after the other: what is decided here about a connection must not change while the connection is asked. */
  let line: Promise<unknown> = Promise.resolve()
  function inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = line.then(async () => {
      if (closed) throw new ClosedError('the postgres-advisory driver is closed')
      return work()
    })
    line = turn.catch(() => {})
    return turn.catch((error: unknown) => {
      throw storeErrorFrom(error)
    })
  }

  return {
    name: 'postgres-advisory',
    capabilities,

    acquire: (claims) =>
      inTurn(async () => {
        if (claims.length === 0) return []
        const had = claims.map((claim) => waiting.leaseOf(claim))
        const fresh = claims.filter((_, index) => had[index] === undefined)
        const tried = await tryAll(fresh)
        const leases = had.map((lease) => lease ?? tried.shift())
        const refused = claims.filter((_, index) => leases[index] === undefined)
        // In the server's queue it is told; without a place there it has to look for itself.
        const started = refused.filter((claim) => claim.waitMs > 0 && waiting.start(claim, askingOf(claim)))
        const rows = await locksOf(refused, await waiting.standing(started, STANDING_MS))
        // Got here while a connection stood in line for it: that one need not stand there any more.
        await Promise.all(claims.filter((_, index) => leases[index] !== undefined).map((claim) => waiting.stop(claim)))
        return claims.map((claim, index): AcquireAnswer => {
          const lease = leases[index] ?? waiting.leaseOf(claim)
          if (lease !== undefined) {
            waiting.settled(claim)
            return grantOf(claim, lease)
          }
          const holder = holderOf(claim.lockName, rows)
          const polls = claim.waitMs > 0 && !started.includes(claim)
          return { granted: false, ...(holder && { holder }), ...(polls && { askAgainMs: POLL_MS }) }
        })
      }),

    renew: (renewals) =>
      inTurn(async () => {
        const sessions = await Promise.all(renewals.map(sessionOf))
        for (const renewal of renewals) waiting.settled(renewal)
        const proofs = new Map<Session, Promise<boolean>>()
        for (const session of sessions) {
          if (session !== undefined && !proofs.has(session)) {
            proofs.set(
              session,
              session.prove().then(
                () => true,
                (error: unknown) => (session.lost === undefined ? Promise.reject(error) : false),
              ),
            )
          }
        }
        return Promise.all(
          sessions.map(
            async (session): Promise<RenewAnswer> =>
              session !== undefined && (await proofs.get(session)) === true ? 'held' : 'lost',
          ),
        )
      }),

    release: (leases) =>
      inTurn(async () => {
        const answers = leases.map(() => false)
        const ends = new Map<Session, { lease: SessionLease; index: number }[]>()
        for (const [index, ref] of leases.entries()) {
          if (ref.fencingToken === undefined) await waiting.stop(ref)
          const session = await sessionOf(ref)
          const lease = session?.leases.get(ref.claimId)
          if (session === undefined || lease === undefined) continue
          const ending = ends.get(session) ?? []
          if (!ending.some((each) => each.lease === lease)) ends.set(session, [...ending, { lease, index }])
        }
        await Promise.all(
          [...ends].map(async ([session, ending]) => {
            const released = await session.unlock(ending.map(({ lease }) => lease))
            ending.forEach(({ index }, place) => {
              answers[index] = released[place] === true
            })
          }),
        )
        waiting.tidy()
        return answers
      }),

    inspect: (query) =>
      inTurn(async () => {
        const keys = query.lockName === undefined ? undefined : [advisoryKey(query.lockName)]
        return inspectLocks(query, await (await mainSession()).locks(keys))
      }),

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
      await line
      await waiting.close()
      const session = await main?.catch(() => undefined)
      await session?.end().catch(() => {})
      await connections.close()
    },
  }
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

/** How often a waiter looks that found all waiting connections in use. */
const POLL_MS = 100
/** How long a refusal waits at the most for a connection to stand in line with, and for others to be able to see that it stands there. */
const STANDING_MS = 50
const SEEN_MS = 1_000
