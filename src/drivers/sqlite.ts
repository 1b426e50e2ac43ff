import { resolve } from 'node:path'
import { type CheckedInspectQuery, checkInspectQuery } from '../core/arguments.ts'
import { type Clock, systemClock } from '../core/clock.ts'
import type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  InspectPage,
  LeaseRef,
  RateAnswer,
  RenewAnswer,
  Renewal,
} from '../core/driver.ts'
import type { Share } from '../core/share.ts'
import { admitted } from './support/admission.ts'
import { answerTake, type Take, type Taken, takeStep, takesOf } from './support/consume-step.ts'
import { openDatabase, type SqliteDatabase } from './support/sqlite-client.ts'
import { SqliteConnection } from './support/sqlite-connection.ts'
import { storeErrorFrom } from './support/sqlite-errors.ts'
import { defaultPath, prepareFile } from './support/sqlite-file.ts'
import { leasesOf, QUEUE_WINDOWS, type Row, readNow, shareOf, waitersOf } from './support/sqlite-rows.ts'
import { sqlitePath, sqliteUrl } from './support/sqlite-url.ts'
import { Waking } from './support/sqlite-waking.ts'

export type { SqliteDatabase, SqliteStatement } from './support/sqlite-client.ts'

export const capabilities: Capabilities = {
  expiry: 'ttl',
  scope: 'machine',
  fencing: true,
  shared: true,
  limit: true,
  queue: true,
  wake: true,
  metadata: true,
  rate: true,
  steal: true,
}

export interface SqliteDriverOptions {
  /** A database that the caller has opened, and closes: `node:sqlite`, libsql or better-sqlite3. It is put into WAL mode. */
  readonly database: SqliteDatabase
  readonly clock?: Clock
}

/**
 * Leases in a database that the caller has open already, beside the caller's own tables. Rejects with a `StoreError` that says what is
 * wrong with it. While the caller has a transaction open on it, every call does.
 */
export async function sqliteDriver({ database, clock = systemClock }: SqliteDriverOptions): Promise<Driver> {
  return driverOn(await SqliteConnection.open({ passedIn: database }, clock), clock)
}

/**
 * `sqlite:<path>`, or `sqlite:` for the file in the user's state folder. Every process of the machine can open the same
 * file. Rejects with `InvalidArgumentError` for a URL of which any part is not understood, and with a `StoreError` that
 * says what is wrong with the file.
 */
export async function openSqlite(url: string, clock: Clock = systemClock): Promise<Driver> {
  // Absolute, so that the process may change its folder, and no client takes a part of it for an address or a setting.
  const path = resolve(sqlitePath(url) ?? defaultPath())
  async function open(): Promise<SqliteDatabase> {
    prepareFile(path)
    try {
      return await openDatabase(path)
    } catch (error) {
      throw storeErrorFrom(error, path)
    }
  }
  const reopen = { module: import.meta.url, name: 'openSqlite', args: [sqliteUrl(path)] }
  return { ...driverOn(await SqliteConnection.open({ path, open }, clock), clock), reopen }
}

function driverOn(connection: SqliteConnection, clock: Clock): Driver {
  const waking = new Waking(connection, clock)
  const sweep = sweeper(connection)

  /** A whole list in one transaction. */
  function each<Request, Answer>(
    requests: readonly Request[],
    step: (request: Request, nowMs: number) => Answer,
  ): Promise<Answer[]> {
    return connection.write(() => {
      const nowMs = readNow(connection)
      sweep(nowMs)
      return requests.map((request) => step(request, nowMs))
    })
  }

  /**
   * As `each`; `givesWay` says of a request whether it may have made room for somebody who waits. Who waits is noted in the same breath, or a
   * release that was sent in the same turn would look for waiters too early.
   */
  async function eachLease<Request extends LeaseRef, Answer>(
    requests: readonly Request[],
    step: (request: Request, nowMs: number) => Answer,
    givesWay: (request: Request, answer: Answer) => boolean,
    note: (answers: readonly Answer[]) => void = () => {},
  ): Promise<Answer[]> {
    let turns = false
    const answers = await each(requests, (request, nowMs) => {
      const answer = step(request, nowMs)
      turns ||= givesWay(request, answer) && waitersOf(connection, request.lockName, nowMs, 1).length > 0
      return answer
    })
    note(answers)
    waking.committed(
      requests.map(({ lockName }) => lockName),
      { turns },
    )
    return answers
  }

  return {
    name: 'sqlite',
    capabilities,

    acquire: (claims) =>
      eachLease(
        claims,
        (claim, nowMs) => acquireOne(connection, claim, nowMs),
        // Beside a shared lease there may be room for the next one in the queue.
        ({ mode }, { granted }) => granted && mode === 'shared',
        (answers) =>
          claims.forEach((claim, index) => {
            if (answers[index]?.granted === false && claim.waitMs > 0) waking.add(claim)
            else waking.remove(claim)
          }),
      ),

    renew: (renewals) =>
      eachLease<Renewal, RenewAnswer>(
        renewals,
        ({ lockName, claimId, fencingToken, ttlMs }, nowMs) =>
          connection.run('renew', nowMs + ttlMs, lockName, claimId, fencingToken, nowMs) > 0 ? 'renewed' : 'lost',
        () => false,
      ),

    release(leases) {
      for (const lease of leases) waking.remove(lease)
      return eachLease<LeaseRef, boolean>(
        leases,
        (lease, nowMs) => releaseOne(connection, lease, nowMs),
        // A place in the queue that was given up may have been the first.
        () => true,
      )
    },

    async consume(requests) {
      const takes = takesOf(requests)
      const isLook = takes.every(({ policy }) => policy.cost === 0)
      const taken = await (isLook
        ? lookAll(connection, takes)
        : each(takes, (take, nowMs) => takeOne(connection, take, nowMs)))
      const answers = new Array<RateAnswer>(requests.length)
      takes.forEach((take, index) => {
        answerTake(take, taken[index] as Taken, answers)
      })
      return answers
    },

    async inspect(query) {
      const checked = checkInspectQuery(query)
      return connection.read(() => inspect(connection, checked))
    },

    async listen(listener) {
      await connection.read(() => waking.listen(listener))
      return async () => waking.stop(listener)
    },

    async close() {
      waking.end()
      connection.close()
    },
  }
}

function acquireOne(connection: SqliteConnection, claim: Claim, nowMs: number): AcquireAnswer {
  const { lockName, claimId, ttlMs, waitMs } = claim
  const leases = leasesOf(connection, lockName, nowMs)

  const own = leases.find((lease) => lease.claimId === claimId)
  if (own !== undefined) {
    connection.run('set_end', nowMs + ttlMs, lockName, claimId, nowMs)
    return { granted: true, fencingToken: own.fencingToken, ttlMs, acquiredAtMs: own.acquiredAtMs }
  }

  if (claim.steal === true) connection.run('end_leases', lockName)
  const { isAdmitted, stands } = claim.steal === true ? STOLEN : placeOf(connection, claim, leases, nowMs)
  if (isAdmitted) {
    if (stands) connection.run('delete_waiter', lockName, claimId)
    const fencingToken = nextToken(connection, nowMs)
    const { holderId, mode, limit, permits, metadata } = claim
    const json = metadata === undefined ? null : JSON.stringify(metadata)
    const end = nowMs + ttlMs
    connection.run(
      'insert_lease',
      lockName,
      claimId,
      holderId,
      mode,
      limit ?? null,
      permits,
      fencingToken,
      nowMs,
      end,
      json,
    )
    return { granted: true, fencingToken, ttlMs, acquiredAtMs: nowMs }
  }

  const [holder] = leases
  const seen = holder && { holder }
  if (waitMs === 0) return { granted: false, ...seen }
  const place = standInQueue(connection, claim, nowMs)
  const [row] = connection.all('count_ahead', lockName, place, nowMs) as {
    ahead: number
    first_gone_ms: number | null
  }[]
  const { ahead = 0, first_gone_ms = null } = row ?? {}
  // The first waits for a lease to run out; the others for somebody before them, who may be dead, to be gone.
  const nextMs =
    ahead === 0 ? Math.min(...leases.map(({ expiresAtMs = nowMs }) => expiresAtMs)) : (first_gone_ms ?? nowMs)
  return { granted: false, ...seen, ahead, askAgainMs: nextMs - nowMs }
}

/** Whoever steals needs no place, and gives up the one that it may have. */
const STOLEN = { isAdmitted: true, stands: true } as const

/** Reads only as much of the queue as decides it. */
function placeOf(
  connection: SqliteConnection,
  claim: Claim,
  leases: readonly Share[],
  nowMs: number,
): { isAdmitted: boolean; stands: boolean } {
  for (const most of [...QUEUE_WINDOWS, -1]) {
    const queue = waitersOf(connection, claim.lockName, nowMs, most).map(shareOf)
    const wholeQueue = most === -1 || queue.length < most
    const stands = queue.some(({ claimId }) => claimId === claim.claimId)
    const line = stands ? queue : [...queue, claim]
    const through = admitted<Share & LeaseRef>(leases, line, (each) => each)
    if (wholeQueue || stands || through.length < queue.length) {
      return { isAdmitted: through.some(({ claimId }) => claimId === claim.claimId), stands }
    }
  }
  return { isAdmitted: false, stands: false }
}

function standInQueue(connection: SqliteConnection, claim: Claim, nowMs: number): number {
  const { lockName, claimId, holderId, mode, limit, permits, waitMs } = claim
  const standing = (): Row | undefined => connection.all('waiter', lockName, claimId, nowMs)[0] as Row | undefined
  const before = standing()
  if (before !== undefined) {
    connection.run('keep_place', nowMs + waitMs, before.place)
    return before.place
  }
  // A place that ran out is lost: the claim stands at the end, not where it was.
  connection.run('delete_waiter', lockName, claimId)
  connection.run('insert_waiter', lockName, claimId, holderId, mode, limit ?? null, permits, nowMs, nowMs + waitMs)
  return standing()?.place ?? 0
}

function nextToken(connection: SqliteConnection, nowMs: number): number {
  const next = () => (connection.all('next_token', nowMs) as { last_token: number }[])[0]?.last_token
  const token = next()
  if (token !== undefined) return token
  // Somebody emptied the table. The clock in microseconds is above every token that was given.
  connection.run('restore_counter')
  return next() as number
}

function releaseOne(
  connection: SqliteConnection,
  { lockName, claimId, fencingToken }: LeaseRef,
  nowMs: number,
): boolean {
  const ended =
    fencingToken === undefined
      ? connection.run('withdraw', lockName, claimId, nowMs)
      : connection.run('release', lockName, claimId, fencingToken, nowMs)
  if (ended > 0) return true
  connection.run('delete_waiter', lockName, claimId)
  return false
}

/** Without the write lock: looks wait for no other process, and sweep nothing. */
function lookAll(connection: SqliteConnection, looks: readonly Take[]): Promise<Taken[]> {
  return connection.read(() => {
    const nowMs = readNow(connection)
    return looks.map((look) => takeOne(connection, look, nowMs))
  })
}

function takeOne(connection: SqliteConnection, take: Take, nowMs: number): Taken {
  const { name, policy } = take
  const keptMs = policy.ids.map((id) => {
    const [row] = connection.all('rate', name, id) as { reset_at_ms: number }[]
    return row?.reset_at_ms ?? 0
  })
  const moments = keptMs.map((atMs) => ({ atMs }))
  const taken = takeStep(take, moments, nowMs)
  moments.forEach(({ atMs }, at) => {
    if (atMs !== keptMs[at]) connection.run('set_rate', name, policy.ids[at] as string, atMs)
  })
  return taken
}

function inspect(connection: SqliteConnection, query: CheckedInspectQuery): InspectPage {
  const { lockName = null, prefix, after = '', pageSize } = query
  const nowMs = readNow(connection)
  const rows = connection.all('names', nowMs, nowMs, after, lockName, lockName, prefix, prefix, pageSize + 1)
  const names = (rows as { lock_name: string }[]).map((row) => row.lock_name)
  const page = names.slice(0, pageSize)
  const next = names.length > pageSize ? page.at(-1) : undefined
  return {
    leases: page.flatMap((name) => leasesOf(connection, name, nowMs)),
    waiters: page.flatMap((name) =>
      waitersOf(connection, name, nowMs, -1).map((row) => ({ ...shareOf(row), waitingSinceMs: row.waiting_since_ms })),
    ),
    ...(next !== undefined && { next }),
  }
}

/** Deletes what has ended, now and then: nothing but space depends on it. */
function sweeper(connection: SqliteConnection): (nowMs: number) => void {
  let lastMs = 0
  return (nowMs) => {
    // Either way: the clock may have been set.
    if (Math.abs(nowMs - lastMs) < SWEEP_EVERY_MS) return
    const swept = SWEEPS.map((sweep) => connection.run(sweep, nowMs, MOST_SWEPT))
    if (swept.every((count) => count < MOST_SWEPT)) lastMs = nowMs
  }
}

const SWEEPS = ['sweep_leases', 'sweep_waiters', 'sweep_rates'] as const
const SWEEP_EVERY_MS = 1_000
/** In one transaction: others wait for it. */
const MOST_SWEPT = 200
