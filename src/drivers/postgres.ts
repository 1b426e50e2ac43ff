import { randomBytes } from 'node:crypto'
import { checkInspectQuery } from '../core/arguments.ts'
import type { AcquireAnswer, Capabilities, Claim, Driver, InspectPage, LeaseRef } from '../core/driver.ts'
import { ClosedError, InvalidArgumentError, StoreError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { systemClock } from '../core/time/clock.ts'
import {
  acquireAnswers,
  acquireGroupsAnswers,
  acquireGroupsValues,
  acquireOneAnswer,
  acquireOneValues,
  acquireValues,
  isOneLock,
  jsonIn,
  leaseArrays,
} from './postgres/acquire-calls.ts'
import { numberArray, parseBooleans } from './postgres/arrays.ts'
import { connectionsOf, openConnections, type PostgresClient } from './postgres/client.ts'
import type { PostgresConnections, Row } from './postgres/connections.ts'
import { rowLocked, storeErrorFrom, unlessInTransaction } from './postgres/errors.ts'
import { ForcedReleases } from './postgres/forced-releases.ts'
import { checkScope, type MigrationScope, migrate, prepare } from './postgres/migrate.ts'
import { NotifyConnection } from './postgres/notify-connection.ts'
import { consume, ratesFrom } from './postgres/rates.ts'
import { type CallName, statementsFor } from './postgres/statements.ts'
import { postgresUrl } from './postgres/url.ts'
import { LossPoll } from './shared/loss-poll.ts'

export { StaleTokenError } from '../core/errors.ts'
export type { PgClient, PgPool, PostgresClient, PostgresSql } from './postgres/client.ts'
export {
  type FenceOptions,
  type PostgresFence,
  type PostgresTransaction,
  postgresFence,
} from './postgres/fence.ts'
export { type MigrationScope, migrationScript } from './postgres/migrate.ts'

export const capabilities: Capabilities = {
  expiry: 'ttl',
  scope: 'network',
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

export interface PostgresDriverOptions {
  /**
   * A `Pool` or a connected `Client` of the package pg, or what `postgres()` of the package postgres returns. The
   * driver never closes it.
   */
  readonly client: PostgresClient
  /**
   * The schema of the tables.
   * @default 'public'
   */
  readonly schema?: string
  /**
   * `crash-safe`: a granted lease survives a crash of the server.
   *
   * `relaxed`: a lease is granted before it has reached the disk (`synchronous_commit = off`, for the driver's
   * statements only). A crash of the server can forget the leases of the last moment, and they are then granted to
   * others, with higher fencing tokens. A lock that is handed over to a waiter is on the disk before the waiter has it,
   * in either mode.
   * @default 'crash-safe'
   */
  readonly durability?: 'crash-safe' | 'relaxed'
  /**
   * Whether the first call creates the tables or brings them up to date.
   * @default true
   */
  readonly migrate?: boolean
}

const OPTIONS = optionNames<PostgresDriverOptions>({ client: true, schema: true, durability: true, migrate: true })

/**
 * A driver that keeps leases in a table, through a client that you already have. It sends nothing before the first
 * call.
 *
 * @throws `InvalidArgumentError` if `client` is not one of the known clients, or an option is unknown or has a wrong
 * value.
 *
 * @example
 * ```ts
 * const pool = new pg.Pool({ connectionString: 'postgres://app@db.example/shop' })
 * const lock = new DistributedLock({ driver: postgresDriver({ client: pool }) })
 * ```
 */
export function postgresDriver(options: PostgresDriverOptions): Driver {
  const { client, ...rest } = checkOptions(options, OPTIONS)
  return driverOn(connectionsOf(client), rest)
}

/**
 * Opens a driver for a `postgres://…` URL, with a small connection pool of its own: with pg if that is installed,
 * otherwise with postgres. Beside the client's own parameters, the URL may have `holdfast_schema`,
 * `holdfast_durability` and `holdfast_migrate`.
 *
 * @throws `InvalidArgumentError` if some part of the URL is not understood.
 * @throws `MissingClientError` if neither pg nor postgres is installed.
 */
export async function openPostgres(url: string): Promise<Driver> {
  const { target, options } = postgresUrl(url)
  const reopen = { module: import.meta.url, name: 'openPostgres', args: [url] }
  return { ...driverOn(await openConnections(target), options), reopen }
}

export interface MigrateOptions extends Pick<PostgresDriverOptions, 'schema'>, MigrationScope {}

/**
 * Creates the tables and functions, or brings them up to date. Any number of instances may call it at once. With
 * `only: 'fence'`, it creates only what `postgresFence` needs.
 *
 * @returns The numbers of the migrations that were run.
 * @throws `StoreError` if the server cannot be reached, the role may not create the tables, or another transaction kept
 * them locked for a minute.
 * @throws `InvalidArgumentError` for an unknown client, schema or option.
 */
export async function migratePostgres(
  options: MigrateOptions & Pick<PostgresDriverOptions, 'client'>,
): Promise<readonly number[]> {
  const { client, schema = 'public', ...scope } = checkOptions(options, MIGRATE_OPTIONS)
  return migrate(connectionsOf(client), schema, checkScope(scope))
}

const MIGRATE_OPTIONS = optionNames<MigrateOptions & Pick<PostgresDriverOptions, 'client'>>({
  client: true,
  schema: true,
  only: true,
})

/**
 * As `migratePostgres`, for the database that a URL names. `schema` overrides the one in the URL.
 *
 * @throws what `migratePostgres` and `openPostgres` throw
 */
export async function migratePostgresUrl(url: string, options: MigrateOptions = {}): Promise<readonly number[]> {
  const { target, options: fromUrl } = postgresUrl(url)
  const { schema = fromUrl.schema ?? 'public', ...scope } = checkOptions(options, MIGRATE_OPTIONS)
  checkScope(scope)
  const connections = await openConnections(target)
  try {
    return await migrate(connections, schema, scope)
  } finally {
    await connections.close()
  }
}

function driverOn(connections: PostgresConnections, options: Omit<PostgresDriverOptions, 'client'>): Driver {
  const { schema = 'public', durability = 'crash-safe', migrate: migrates = true } = options
  checkSettings(durability, migrates)
  const statements = statementsFor(schema)
  const relaxed = String(durability === 'relaxed')
  const channel = `holdfast_${randomBytes(12).toString('hex')}`
  const notifyConnection = new NotifyConnection({
    connections,
    channel,
    notify: (payload) => connections.query(statements.hello, [channel, payload]),
    prepare: () => prepared(),
    listenKey: statements.listen_key,
  })
  let ready: Promise<void> | undefined
  let hasWritten = false
  let closed = false

  const prepared = (): Promise<void> => {
    // After a failure the next call tries again.
    ready ??= prepare(connections, schema, migrates).catch((error: unknown) => {
      ready = undefined
      throw error
    })
    return ready
  }

  async function call(statement: CallName, values: readonly (string | null)[]): Promise<Row> {
    if (closed) throw new ClosedError('the postgres driver is closed')
    try {
      await prepared()
      const isRead = statement === 'inspect' || statement === 'rates'
      const send = isRead ? connections.query : connections.call
      const [row] = await send(statements[statement], values)
      if (row === undefined) throw new StoreError(`PostgreSQL answered ${statement} without a row`)
      if (!isRead && statement !== 'forced') hasWritten = true
      return row
    } catch (error) {
      // After any failure the next call checks the tables again: they may have been dropped, or just been created.
      ready = undefined
      throw storeErrorFrom(error, { place: connections.place, isPool: connections.isPool, hasWritten })
    }
  }

  const forcedReleases = new ForcedReleases((after) => call('forced', [after]))
  const lossPoll = new LossPoll({
    clock: systemClock,
    everyMs: LOSS_POLL_MS,
    // The caller's one connection cannot be asked during a transaction of the caller. The next look may succeed.
    look: (listeners) => forcedReleases.look(listeners).catch(unlessInTransaction),
  })

  async function acquire(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    if (!claims.some(({ waitMs }) => waitMs > 0)) return ask(claims, '')
    const sent = notifyConnection.sends(claims)
    const answers = await ask(claims, sent.address)
    notifyConnection.answered(sent, claims, answers)
    return answers
  }

  async function ask(claims: readonly Claim[], address: string): Promise<readonly (AcquireAnswer | Error)[]> {
    const [claim] = claims
    if (claim === undefined) return []
    if (claims.length === 1 && isOneLock(claim)) {
      return [acquireOneAnswer(claim, await call('acquire_one', acquireOneValues(claim, address, relaxed)))]
    }
    return acquireAnswers(claims, await call('acquire', acquireValues(claims, address, relaxed)))
  }

  async function acquireGroups(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    return acquireGroupsAnswers(claims, await call('acquire_groups', acquireGroupsValues(claims, relaxed)))
  }

  async function steal({ lockName, claimId, holderId, ttlMs, metadata, stealUpTo }: Claim): Promise<AcquireAnswer> {
    const json = metadata === undefined ? null : JSON.stringify(metadata)
    const upTo = stealUpTo === undefined ? null : String(stealUpTo)
    const row = await call('steal', [lockName, claimId, holderId, String(ttlMs), json, relaxed, upTo])
    if (row['fencing_token'] === null) return { granted: false }
    return { granted: true, fencingToken: Number(row['fencing_token']), ttlMs, acquiredAtMs: Number(row['granted_at']) }
  }

  async function releaseOne({ lockName, claimId, fencingToken }: LeaseRef): Promise<boolean> {
    const token = fencingToken === undefined ? null : String(fencingToken)
    const { answer } = await call('release_one', [lockName, claimId, token, relaxed])
    return answer === 'true'
  }

  /**
   * Claims that steal and groups are rare. So a list that has some is sent in parts, in order: each claim that steals
   * is a call of its own, and so is each run of groups. A failure counts for its own part only.
   */
  async function acquireInParts(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    const start = claims.findIndex((claim) => claim.steal || claim.group !== undefined)
    if (start === -1) return acquire(claims)
    const first = claims[start] as Claim
    const rest = claims.slice(start)
    const length = first.steal ? 1 : rest.findIndex(({ group }) => group === undefined)
    const end = length === -1 ? claims.length : start + length
    const [before, part, after] = [claims.slice(0, start), claims.slice(start, end), claims.slice(end)]
    const failed = (of: readonly Claim[]) => (error: Error) => of.map(() => error)
    return [
      ...(await acquire(before).catch(failed(before))),
      ...(await (first.steal ? steal(first).then((answer) => [answer]) : acquireGroups(part)).catch(failed(part))),
      ...(await acquireInParts(after).catch(failed(after))),
    ]
  }

  return {
    name: 'postgres',
    place: connections.place,
    capabilities,
    acquire: acquireInParts,

    async renew(renewals) {
      if (renewals.length === 0) return []
      const ttls = numberArray(renewals.map(({ ttlMs }) => ttlMs))
      const { answers } = await call('renew', [...leaseArrays(renewals), ttls, relaxed])
      return parseBooleans(answers as string).map((renewed, index) => {
        if (renewed === undefined) return rowLocked(renewals[index]?.lockName)
        return renewed ? 'renewed' : 'lost'
      })
    },

    async release(leases) {
      const [lease] = leases
      if (lease === undefined) return []
      for (const each of leases) notifyConnection.forget(each)
      if (leases.length === 1) return [await releaseOne(lease)]
      const { answers } = await call('release', [...leaseArrays(leases), relaxed])
      return parseBooleans(answers as string).map((ended, index) => ended ?? rowLocked(leases[index]?.lockName))
    },

    async inspect(query) {
      const { lockName, prefix, after, pageSize } = checkInspectQuery(query)
      const { page } = await call('inspect', [lockName ?? null, prefix, after ?? null, String(pageSize)])
      return jsonIn<InspectPage>('inspect', page)
    },

    consume: (requests) =>
      consume(requests, {
        step: (values) => call('consume', [...values, relaxed]),
        change: (values) => call('change_rate', [...values, relaxed]),
      }),

    async inspectRates(query) {
      const { prefix, after, pageSize } = checkInspectQuery(query)
      const { rates } = await call('rates', [prefix, after ?? '', String(pageSize)])
      return ratesFrom(String(rates), pageSize)
    },

    listen: (listener) => notifyConnection.listen(listener),
    watch: (listener) => lossPoll.watch(listener),

    async close() {
      if (closed) return
      closed = true
      lossPoll.end()
      await notifyConnection.close()
      await connections.close()
    },
  }
}

function checkSettings(durability: unknown, migrates: unknown): void {
  if (durability !== 'crash-safe' && durability !== 'relaxed') {
    throw new InvalidArgumentError('durability', durability, 'crash-safe or relaxed')
  }
  if (typeof migrates !== 'boolean') throw new InvalidArgumentError('migrate', migrates, 'true or false')
}

/** A forced release is noticed within this time. */
const LOSS_POLL_MS = 500
