import { type Clock, systemClock } from '../core/clock.ts'
import type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  DriverListener,
  InspectPage,
  InspectQuery,
  LeaseRecord,
  LeaseRef,
  RateAnswer,
  RateRequest,
  RenewAnswer,
  Renewal,
} from '../core/driver.ts'
import { admitted } from './support/admission.ts'
import { consumeStep } from './support/consume-step.ts'
import { openDatabase, type SqliteDatabase } from './support/sqlite-client.ts'
import { SqliteConnection } from './support/sqlite-connection.ts'
import { storeErrorFrom } from './support/sqlite-errors.ts'
import { defaultPath, prepareFolder, protectFile } from './support/sqlite-file.ts'
import { watchDatabase } from './support/sqlite-watch.ts'

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
}

export interface SqliteDriverOptions {
  /** A database that the caller has opened, and closes: `node:sqlite`, libsql or better-sqlite3. It is put into WAL mode. */
  readonly database: SqliteDatabase
  readonly clock?: Clock
}

/** Leases in a database that the caller has open already, beside the caller's own tables. */
export async function sqliteDriver({ database, clock = systemClock }: SqliteDriverOptions): Promise<Driver> {
  const connection = new SqliteConnection(database, clock)
  await connection.prepare({ foreignTables: true })
  return driverOn(connection, clock, { closesDatabase: false })
}

/** `sqlite:<path>`, or `sqlite:` for the file in the user's state folder. Every process of the machine can open the same file. */
export async function openSqlite(url: string, clock: Clock = systemClock): Promise<Driver> {
  const path = url.slice('sqlite:'.length) || defaultPath()
  prepareFolder(path)
  let database: SqliteDatabase | undefined
  try {
    database = await openDatabase(path)
    const connection = new SqliteConnection(database, clock)
    await connection.prepare({ foreignTables: false })
    protectFile(connection.path)
    const reopen = { module: import.meta.url, name: 'openSqlite', args: [`sqlite:${connection.path}`] }
    return { ...driverOn(connection, clock, { closesDatabase: true }), reopen }
  } catch (error) {
    database?.close()
    throw storeErrorFrom(error, path)
  }
}

function driverOn(connection: SqliteConnection, clock: Clock, { closesDatabase }: { closesDatabase: boolean }): Driver {
  const waking = new Waking(connection, clock)

  /** A whole list in one transaction. */
  async function each<Request, Answer>(
    requests: readonly Request[],
    sweeps: readonly ('sweep_leases' | 'sweep_waiters' | 'sweep_rates')[],
    step: (request: Request, nowMs: number) => Answer,
  ): Promise<Answer[]> {
    const answers = await connection.write(() => {
      const nowMs = readNow(connection)
      for (const sweep of sweeps) connection.run(sweep, nowMs)
      return requests.map((request) => step(request, nowMs))
    })
    // Another connection hears of it through the file; this one's own waiters do not.
    waking.look()
    return answers
  }

  return {
    name: 'sqlite',
    capabilities,

    async acquire(claims) {
      const answers = await each(claims, ['sweep_leases', 'sweep_waiters'], (claim, nowMs) =>
        acquireOne(connection, claim, nowMs),
      )
      claims.forEach((claim, index) => {
        if (answers[index]?.granted === false && claim.waitMs > 0) waking.add(claim)
        else waking.remove(claim)
      })
      return answers
    },

    renew: (renewals) =>
      each<Renewal, RenewAnswer>(renewals, [], ({ lockName, claimId, fencingToken, ttlMs }, nowMs) =>
        connection.run('renew', nowMs + ttlMs, lockName, claimId, fencingToken, nowMs) > 0 ? 'renewed' : 'lost',
      ),

    release(leases) {
      for (const lease of leases) waking.remove(lease)
      return each<LeaseRef, boolean>(leases, [], ({ lockName, claimId, fencingToken }, nowMs) => {
        connection.run('delete_waiter', lockName, claimId)
        if (fencingToken === undefined) return connection.run('withdraw', lockName, claimId, nowMs) > 0
        return connection.run('release', lockName, claimId, fencingToken, nowMs) > 0
      })
    },

    consume: (requests) => each(requests, ['sweep_rates'], (request, nowMs) => consumeOne(connection, request, nowMs)),

    inspect: async (query) => connection.read(() => inspect(connection, query)),

    async listen(listener) {
      connection.read(() => waking.listen(listener))
      return async () => waking.stop(listener)
    },

    async close() {
      waking.end()
      connection.close(closesDatabase)
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

  if (isAdmitted(connection, claim, leases, nowMs)) {
    connection.run('delete_waiter', lockName, claimId)
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

/** Reads only as much of the queue as decides it: with an exclusive claim at its front, that is one row. */
function isAdmitted(
  connection: SqliteConnection,
  claim: Claim,
  leases: readonly LeaseRecord[],
  nowMs: number,
): boolean {
  for (const most of [QUEUE_WINDOW, -1]) {
    const queue = connection.all('waiters_of', claim.lockName, nowMs, most).map((row) => recordOf(row as Row))
    const wholeQueue = most === -1 || queue.length < most
    const stands = queue.some(({ claimId }) => claimId === claim.claimId)
    const line: readonly (Claim | LeaseRecord)[] = stands ? queue : [...queue, claim]
    const through = admitted(leases, line, (each) => each)
    if (wholeQueue || stands || through.length < queue.length)
      return through.some(({ claimId }) => claimId === claim.claimId)
  }
  return false
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
  if (connection.run('next_token', nowMs) === 0) {
    // Somebody emptied the table. The clock in microseconds is above every token that was given.
    connection.run('restore_counter')
    connection.run('next_token', nowMs)
  }
  const [row] = connection.all('last_token') as { last_token: number }[]
  return row?.last_token as number
}

function consumeOne(connection: SqliteConnection, request: RateRequest, nowMs: number): RateAnswer {
  const [row] = connection.all('rate', request.name) as { arrivals_ms: string }[]
  const before = row === undefined ? [] : (JSON.parse(row.arrivals_ms) as number[])
  const { answer, arrivalsMs } = consumeStep(request, before, nowMs)
  if (answer.allowed) {
    connection.run('set_rate', request.name, JSON.stringify(arrivalsMs), Math.ceil(Math.max(...arrivalsMs)))
  }
  return answer
}

function inspect(connection: SqliteConnection, query: InspectQuery): InspectPage {
  const { lockName = null, prefix = '', after = '', pageSize = 100 } = query
  const nowMs = readNow(connection)
  const rows = connection.all('names', nowMs, nowMs, after, lockName, lockName, prefix, prefix, pageSize + 1)
  const names = (rows as { lock_name: string }[]).map((row) => row.lock_name)
  const page = names.slice(0, pageSize)
  const next = names.length > pageSize ? page.at(-1) : undefined
  return {
    leases: page.flatMap((name) => leasesOf(connection, name, nowMs)),
    waiters: page.flatMap((name) =>
      (connection.all('waiters_of', name, nowMs, -1) as Row[]).map((row) => ({
        ...shareOf(row),
        waitingSinceMs: row.waiting_since_ms,
      })),
    ),
    ...(next !== undefined && { next }),
  }
}

/**
 * Finds out which of this driver's waiters should ask again. It only reads: a look that wrote would wake every other process, whose
 * looks would wake this one.
 */
class Waking {
  readonly #connection: SqliteConnection
  readonly #clock: Clock
  readonly #listeners = new Set<DriverListener>()
  /** The claims of this driver that stand in a queue, by lock name. */
  readonly #waiting = new Map<string, Set<string>>()
  /** Who was first when last looked, and what it waited for: it is told when either changes, because then it should ask sooner. */
  readonly #first = new Map<string, { claimId: string; nextEndMs: number }>()
  #version = 0
  #stopWatching: (() => void) | undefined

  constructor(connection: SqliteConnection, clock: Clock) {
    this.#connection = connection
    this.#clock = clock
  }

  add({ lockName, claimId }: LeaseRef): void {
    const waiting = this.#waiting.get(lockName) ?? new Set()
    this.#waiting.set(lockName, waiting.add(claimId))
  }

  remove({ lockName, claimId }: LeaseRef): void {
    const waiting = this.#waiting.get(lockName)
    if (waiting === undefined) return
    waiting.delete(claimId)
    if (waiting.size > 0) return
    this.#waiting.delete(lockName)
    this.#first.delete(lockName)
  }

  listen(listener: DriverListener): void {
    this.#listeners.add(listener)
    this.#version = this.#connection.dataVersion()
    this.#stopWatching ??= watchDatabase(this.#connection.path, this.#clock, () => this.#lookIfChanged())
  }

  stop(listener: DriverListener): void {
    this.#listeners.delete(listener)
    if (this.#listeners.size === 0) this.end()
  }

  end(): void {
    this.#stopWatching?.()
    this.#stopWatching = undefined
  }

  look(): void {
    if (this.#listeners.size === 0 || this.#waiting.size === 0) return
    const nowMs = readNow(this.#connection)
    for (const [lockName, claimIds] of this.#waiting) this.#lookAt(lockName, claimIds, nowMs)
  }

  #lookIfChanged(): void {
    if (this.#waiting.size === 0) return
    try {
      const version = this.#connection.dataVersion()
      if (version === this.#version) return
      this.#version = version
      this.look()
    } catch (error) {
      this.end()
      const cause = storeErrorFrom(error, this.#connection.path)
      for (const listener of [...this.#listeners]) listener.deaf(cause)
      this.#listeners.clear()
    }
  }

  #lookAt(lockName: string, claimIds: ReadonlySet<string>, nowMs: number): void {
    const leases = leasesOf(this.#connection, lockName, nowMs)
    const queue = this.#connection.all('waiters_of', lockName, nowMs, QUEUE_WINDOW).map((row) => recordOf(row as Row))
    const [first] = queue
    const woken = admitted(leases, queue, (each) => each)
    if (first !== undefined) {
      const before = this.#first.get(lockName)
      const nextEndMs = Math.min(...leases.map(({ expiresAtMs = nowMs }) => expiresAtMs))
      const news = before?.claimId !== first.claimId || nextEndMs < before.nextEndMs
      if (woken.length === 0 && news) woken.push(first)
      this.#first.set(lockName, { claimId: first.claimId, nextEndMs })
    }
    for (const { claimId } of woken) {
      if (!claimIds.has(claimId)) continue
      for (const listener of this.#listeners) listener.wake(lockName, claimId)
    }
  }
}

function readNow(connection: SqliteConnection): number {
  const [row] = connection.all('now') as { now_ms: number }[]
  return row?.now_ms as number
}

const leasesOf = (connection: SqliteConnection, lockName: string, nowMs: number): LeaseRecord[] =>
  (connection.all('leases_of', lockName, nowMs) as Row[]).map(recordOf)

/** A row of either table, as far as each has the column. */
interface Row {
  readonly lock_name: string
  readonly claim_id: string
  readonly holder_id: string
  readonly mode: 'exclusive' | 'shared'
  readonly max_permits: number | null
  readonly permits: number
  readonly fencing_token: number
  readonly acquired_at_ms: number
  readonly expires_at_ms: number
  readonly metadata: string | null
  readonly place: number
  readonly waiting_since_ms: number
}

const shareOf = (row: Row) => ({
  lockName: row.lock_name,
  claimId: row.claim_id,
  holderId: row.holder_id,
  mode: row.mode,
  ...(row.max_permits !== null && { limit: row.max_permits }),
  permits: row.permits,
})

const recordOf = (row: Row): LeaseRecord => ({
  ...shareOf(row),
  fencingToken: row.fencing_token,
  acquiredAtMs: row.acquired_at_ms,
  expiresAtMs: row.expires_at_ms,
  ...(row.metadata && { metadata: JSON.parse(row.metadata) as Record<string, unknown> }),
})

/** How much of a queue is read to decide who is next. */
const QUEUE_WINDOW = 32
