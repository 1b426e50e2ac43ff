import { resolve } from 'node:path'
import { checkInspectQuery } from '../core/arguments.ts'
import type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  LeaseRef,
  RateAnswer,
  RateRequest,
  RenewAnswer,
  Renewal,
} from '../core/driver.ts'
import { InvalidArgumentError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { type Clock, systemClock } from '../core/time/clock.ts'
import { answerTake, type Taken, takesOf } from './shared/consume-step.ts'
import { inGroups } from './shared/groups.ts'
import { LossPoll } from './shared/loss-poll.ts'
import { acquireGroup, acquireOne } from './sqlite/acquire.ts'
import { openDatabase, type SqliteDatabase } from './sqlite/client.ts'
import { SqliteConnection } from './sqlite/connection.ts'
import { storeErrorFrom } from './sqlite/errors.ts'
import { defaultPath, prepareFile } from './sqlite/file.ts'
import { inspect } from './sqlite/inspect.ts'
import { inParts } from './sqlite/list-parts.ts'
import { LockViews } from './sqlite/lock-view.ts'
import { inspectRates, lookAll, takeOne } from './sqlite/rates.ts'
import { firstWaiterOf, readNow } from './sqlite/rows.ts'
import { sweeper } from './sqlite/sweep.ts'
import { Thefts } from './sqlite/thefts.ts'
import { sqlitePath, sqliteUrl } from './sqlite/url.ts'
import { SqliteWakeUps } from './sqlite/wake-ups.ts'

export type { SqliteDatabase, SqliteStatement } from './sqlite/client.ts'

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
  force: true,
  groups: true,
}

export interface SqliteDriverOptions {
  /**
   * A database that the caller has opened: `node:sqlite`, libsql or better-sqlite3. The driver puts it into WAL mode.
   * The caller closes it.
   */
  readonly database: SqliteDatabase
  /**
   * For tests.
   * @default the clock of the system
   */
  readonly clock?: Clock
}

const OPTIONS = optionNames<SqliteDriverOptions>({ database: true, clock: true })

/**
 * Keeps leases in a database that the caller has already opened, beside the caller's own tables. While the caller has a
 * transaction open on it, every call rejects with a `StoreError`.
 *
 * @throws `InvalidArgumentError` for something that is not an open database.
 * @throws `StoreError` that says what is wrong with the database.
 *
 * @example
 * ```ts
 * const database = new DatabaseSync('app.db')
 * const lock = new DistributedLock({ driver: await sqliteDriver({ database }) })
 * ```
 */
export async function sqliteDriver(options: SqliteDriverOptions): Promise<Driver> {
  const { database, clock = systemClock } = checkOptions(options, OPTIONS)
  checkDatabase(database)
  return driverOn(await SqliteConnection.open({ passedIn: database }, clock), clock)
}

/**
 * Opens `sqlite:<path>`, or `sqlite:` for the file in the user's state folder. Every process of the machine can open
 * the same file.
 *
 * @throws `InvalidArgumentError` for a URL with a part that is not understood.
 * @throws `MissingClientError` on a version of Node without `node:sqlite`, if neither libsql nor better-sqlite3 is
 * installed.
 * @throws `StoreError` that says what is wrong with the file.
 */
export async function openSqlite(url: string, clock: Clock = systemClock): Promise<Driver> {
  // Absolute, so that the process may change its folder, and no client reads a part of it as an address or a setting.
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

function checkDatabase(database: unknown): void {
  const has = (method: string): boolean => typeof (database as Record<string, unknown> | null)?.[method] === 'function'
  if (!['exec', 'prepare', 'close'].every(has)) {
    throw new InvalidArgumentError('database', database, 'an open database of node:sqlite, libsql or better-sqlite3')
  }
}

function driverOn(connection: SqliteConnection, clock: Clock): Driver {
  const wakeUps = new SqliteWakeUps(connection, clock)
  const lossPoll = new LossPoll({ clock, everyMs: LOSS_POLL_MS, look: new Thefts(connection).look })
  const sweep = sweeper(connection)

  /** One transaction. It may be rolled back and begin again. */
  function each<Request, Answer>(
    requests: readonly Request[],
    busyUntilMs: number | undefined,
    step: (request: Request, nowMs: number) => Answer,
    begin: (nowMs: number) => void = () => {},
  ): Promise<Answer[]> {
    const work = (): Answer[] => {
      const nowMs = readNow(connection)
      begin(nowMs)
      sweep(nowMs)
      return requests.map((request) => step(request, nowMs))
    }
    return connection.write(work, busyUntilMs)
  }

  /**
   * As `each`, and wakes waiters after the commit. `makesRoom` says of a request whether a waiter may be granted the
   * lock now. `note` runs before the wake-ups are decided: a claim that has just been queued must be known by then.
   */
  async function eachLease<Request extends LeaseRef, Answer>(
    requests: readonly Request[],
    busyUntilMs: number | undefined,
    step: (request: Request, nowMs: number) => Answer,
    makesRoom: (request: Request, answer: Answer) => boolean,
    { begin, note }: { begin?: (nowMs: number) => void; note?: (answers: readonly Answer[]) => void } = {},
  ): Promise<Answer[]> {
    let turns = false
    const stepAndLook = (request: Request, nowMs: number): Answer => {
      const answer = step(request, nowMs)
      turns ||= makesRoom(request, answer) && firstWaiterOf(connection, request.lockName, nowMs) !== undefined
      return answer
    }
    const answers = await each(requests, busyUntilMs, stepAndLook, begin)
    note?.(answers)
    wakeUps.committed(
      requests.map(({ lockName }) => lockName),
      { turns },
    )
    return answers
  }

  function acquire(claims: readonly Claim[], busyUntilMs?: number): Promise<(AcquireAnswer | Error)[]> {
    let answerTo: (claim: Claim) => AcquireAnswer | Error
    return eachLease<Claim, AcquireAnswer | Error>(
      claims,
      busyUntilMs,
      (claim) => answerTo(claim),
      // There may be room beside a shared lease for the next waiter.
      ({ mode }, answer) => mode === 'shared' && isGranted(answer),
      {
        begin(nowMs) {
          const views = new LockViews(connection)
          answerTo = inGroups<AcquireAnswer | Error>(
            claims,
            (claim) => acquireOne(connection, views.of(claim.lockName, nowMs), claim, nowMs),
            (members) => acquireGroup(connection, views, members, nowMs),
          )
        },
        note(answers) {
          claims.forEach((claim, index) => {
            if (claim.waitMs > 0 && !isGranted(answers[index])) wakeUps.add(claim)
            else wakeUps.remove(claim)
          })
        },
      },
    )
  }

  const renew = (renewals: readonly Renewal[], busyUntilMs?: number): Promise<RenewAnswer[]> =>
    eachLease(
      renewals,
      busyUntilMs,
      ({ lockName, claimId, fencingToken, ttlMs }, nowMs) =>
        connection.run('renew', nowMs + ttlMs, ttlMs, lockName, claimId, fencingToken, nowMs) > 0 ? 'renewed' : 'lost',
      () => false,
    )

  function release(leases: readonly LeaseRef[], busyUntilMs?: number): Promise<boolean[]> {
    for (const lease of leases) wakeUps.remove(lease)
    return eachLease(
      leases,
      busyUntilMs,
      (lease, nowMs) => releaseOne(connection, lease, nowMs),
      // A withdrawn claim may have been the first in the queue.
      () => true,
    )
  }

  async function consume(requests: readonly RateRequest[], busyUntilMs?: number): Promise<RateAnswer[]> {
    const takes = takesOf(requests)
    const isLook = takes.every(({ policy, change }) => policy.cost === 0 && change === undefined)
    const taken = await (isLook
      ? lookAll(connection, takes)
      : each(takes, busyUntilMs, (take, nowMs) => takeOne(connection, take, nowMs)))
    const answers = new Array<RateAnswer>(requests.length)
    takes.forEach((take, index) => {
      answerTake(take, taken[index] as Taken, answers)
    })
    return answers
  }

  return {
    name: 'sqlite',
    capabilities,
    acquire: (claims) => inParts(connection, claims, acquire),
    renew: (renewals) => inParts<Renewal, RenewAnswer>(connection, renewals, renew),
    release: (leases) => inParts<LeaseRef, boolean>(connection, leases, release),
    consume: (requests) => inParts<RateRequest, RateAnswer>(connection, requests, consume),

    async inspectRates(query) {
      const checked = checkInspectQuery(query)
      return connection.read(() => inspectRates(connection, checked))
    },

    async inspect(query) {
      const checked = checkInspectQuery(query)
      return connection.read(() => inspect(connection, checked))
    },

    async listen(listener) {
      await connection.read(() => wakeUps.listen(listener))
      return async () => wakeUps.stop(listener)
    },

    watch: (listener) => lossPoll.watch(listener),

    async close() {
      lossPoll.end()
      wakeUps.end()
      connection.close()
    },
  }
}

/** A forced release is noticed within this time. */
const LOSS_POLL_MS = 250

const isGranted = (answer: AcquireAnswer | Error | undefined): boolean =>
  answer !== undefined && !(answer instanceof Error) && answer.granted

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
