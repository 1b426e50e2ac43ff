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
import { inGroups } from './shared/groups.ts'
import { acquireGroup, acquireOne, lockViews } from './sqlite/acquire.ts'
import { openDatabase, type SqliteDatabase } from './sqlite/client.ts'
import { SqliteConnection } from './sqlite/connection.ts'
import { storeErrorFrom } from './sqlite/errors.ts'
import { defaultPath, prepareFile } from './sqlite/file.ts'
import { inspect } from './sqlite/inspect.ts'
import { inParts } from './sqlite/list-parts.ts'
import { copyOf, refuseSecondCopy } from './sqlite/one-copy.ts'
import type { Wait } from './sqlite/patience.ts'
import { consume as consumeIn, inspectRates } from './sqlite/rates.ts'
import { readNow, waitersOf } from './sqlite/rows.ts'
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
  force: 'claim',
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
  return driverOn(await SqliteConnection.open({ open: async () => database }, clock), clock)
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
    await refuseSecondCopy(path, ownCopy)
    try {
      return await openDatabase(path)
    } catch (error) {
      throw storeErrorFrom(error, path)
    }
  }
  const driver = driverOn(await SqliteConnection.open({ path, open }, clock), clock)
  const reopen = { module: import.meta.url, name: 'openSqlite', args: [sqliteUrl(path)] }
  return { ...driver, extensions: { ...driver.extensions, reopen } }
}

/** The copy of SQLite that opens the file of a URL. */
async function ownCopy(): Promise<string> {
  const database = await openDatabase(':memory:')
  try {
    return copyOf((sql) => database.prepare(sql).all() as Record<string, unknown>[])
  } finally {
    database.close()
  }
}

function checkDatabase(database: unknown): void {
  const has = (method: string): boolean => typeof (database as Record<string, unknown> | null)?.[method] === 'function'
  if (!['exec', 'prepare', 'close'].every(has)) {
    throw new InvalidArgumentError('database', database, 'an open database of node:sqlite, libsql or better-sqlite3')
  }
}

function driverOn(connection: SqliteConnection, clock: Clock): Driver {
  const wakeUps = new SqliteWakeUps(connection, clock)
  const sweep = sweeper(connection)

  /** One transaction. It may be rolled back and begin again. */
  function transact<T>(wait: Wait, work: (nowMs: number) => T): Promise<T> {
    const step = (): T => {
      const nowMs = readNow(connection)
      sweep(nowMs)
      return work(nowMs)
    }
    return connection.write(step, wait)
  }

  const hasWaiter = ({ lockName }: LeaseRef, nowMs: number): boolean =>
    waitersOf(connection, lockName, nowMs, 1).length > 0

  async function acquire(claims: readonly Claim[], busyUntilMs?: number): Promise<(AcquireAnswer | Error)[]> {
    const { answers, turns } = await transact({ untilMs: busyUntilMs }, (nowMs) => {
      const viewOf = lockViews(connection, nowMs)
      const answerTo = inGroups<AcquireAnswer | Error>(
        claims,
        (claim) => acquireOne(viewOf(claim.lockName), claim),
        (members) => acquireGroup(viewOf, members),
      )
      const answers = claims.map((claim) => answerTo(claim))
      // There may be room beside a shared lease for the next waiter.
      const isTurn = (claim: Claim, at: number): boolean =>
        claim.mode === 'shared' && isGranted(answers[at]) && hasWaiter(claim, nowMs)
      return { answers, turns: claims.some(isTurn) }
    })
    // Before the wake-ups are decided: a claim that has just been queued must be known by then.
    for (const [at, claim] of claims.entries()) {
      if (claim.waiterTtlMs > 0 && !isGranted(answers[at])) wakeUps.add(claim)
      else wakeUps.remove(claim)
    }
    wakeUps.committed(claims, { turns })
    return answers
  }

  async function renew(renewals: readonly Renewal[], busyUntilMs?: number): Promise<RenewAnswer[]> {
    // A heartbeat goes before other requests: late, it loses leases.
    const renewed = await transact({ untilMs: busyUntilMs, isUrgent: true }, (nowMs) =>
      renewals.map(({ lockName, claimId, fencingToken, ttlMs }) =>
        connection.run('renew', nowMs + ttlMs, ttlMs, lockName, claimId, fencingToken, nowMs),
      ),
    )
    wakeUps.committed(renewals, { turns: false })
    return renewed.map((count) => (count > 0 ? 'renewed' : 'lost'))
  }

  async function release(leases: readonly LeaseRef[], busyUntilMs?: number): Promise<boolean[]> {
    for (const lease of leases) wakeUps.remove(lease)
    const { answers, turns } = await transact({ untilMs: busyUntilMs }, (nowMs) => ({
      answers: leases.map((lease) => releaseOne(connection, lease, nowMs)),
      // Also after a release that ended nothing: a withdrawn claim may have been the first in the queue.
      turns: leases.some((lease) => hasWaiter(lease, nowMs)),
    }))
    wakeUps.committed(leases, { turns })
    return answers
  }

  function consume(requests: readonly RateRequest[], busyUntilMs?: number): Promise<RateAnswer[]> {
    const isLook = requests.every(({ cost, change }) => cost === 0 && change === undefined)
    const step = (nowMs: number): RateAnswer[] => consumeIn(connection, requests, nowMs)
    // A look needs no write lock: it does not wait for another process, and deletes nothing.
    return isLook ? connection.read(() => step(readNow(connection))) : transact({ untilMs: busyUntilMs }, step)
  }

  return {
    name: 'sqlite',
    capabilities,
    acquire: (claims) => inParts(clock, claims, acquire),
    renew: (renewals) => inParts<Renewal, RenewAnswer>(clock, renewals, renew),
    release: (leases) => inParts<LeaseRef, boolean>(clock, leases, release),
    consume: (requests) => inParts<RateRequest, RateAnswer>(clock, requests, consume),

    async inspect(query) {
      const checked = checkInspectQuery(query)
      return connection.read(() => inspect(connection, checked))
    },

    async listen(listener) {
      await connection.read(() => wakeUps.listen(listener))
      return async () => wakeUps.stop(listener)
    },

    async close() {
      wakeUps.end()
      connection.close()
    },

    extensions: {
      async inspectRates(query) {
        const checked = checkInspectQuery(query)
        return connection.read(() => inspectRates(connection, checked))
      },
    },
  }
}

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

/** Deletes ended rows now and then. Only disk space depends on it. */
function sweeper(connection: SqliteConnection): (nowMs: number) => void {
  let lastMs = 0
  return (nowMs) => {
    // In both directions, because the clock may have been set.
    if (Math.abs(nowMs - lastMs) < SWEEP_EVERY_MS) return
    const swept = SWEEPS.map((sweep) => connection.run(sweep, nowMs, MAX_SWEPT))
    if (swept.every((count) => count < MAX_SWEPT)) lastMs = nowMs
  }
}

const SWEEPS = ['sweep_leases', 'sweep_waiters', 'sweep_rates', 'sweep_ahead'] as const
const SWEEP_EVERY_MS = 1_000
/** Per transaction, because other processes wait for it. */
const MAX_SWEPT = 200
