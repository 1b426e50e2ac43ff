import { randomBytes } from 'node:crypto'
import { checkBoolean, checkInspectQuery } from '../core/arguments.ts'
import type { Capabilities, Driver, InspectPage } from '../core/driver.ts'
import { ClosedError, InvalidArgumentError, StoreError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { acquire, jsonIn } from './postgres/acquire.ts'
import { leaseArrays, numberArray, parseBooleans } from './postgres/arrays.ts'
import { connectionsOf, openConnections, type PostgresClient } from './postgres/client.ts'
import type { PostgresConnections, Row } from './postgres/connections.ts'
import { rowLocked, storeErrorFrom } from './postgres/errors.ts'
import { checkScope, type MigrationScope, migrate, prepare } from './postgres/migrate.ts'
import { createNotifyConnection } from './postgres/notify-connection.ts'
import { consume, ratesFrom } from './postgres/rates.ts'
import { type CallName, statementsFor } from './postgres/statements.ts'
import { withoutUnstorable } from './postgres/unstorable.ts'
import { postgresUrl } from './postgres/url.ts'

export { StaleTokenError } from '../core/errors.ts'
export type { PgClient, PgPool, PostgresClient, PostgresSql } from './postgres/client.ts'
export { type FenceOptions, type PostgresFence, type PostgresTransaction, postgresFence } from './postgres/fence.ts'
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
  force: 'claim',
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
  const driver = driverOn(await openConnections(target), options)
  const reopen = { module: import.meta.url, name: 'openPostgres', args: [url] }
  return { ...driver, extensions: { ...driver.extensions, reopen } }
}

export interface MigrateOptions extends Pick<PostgresDriverOptions, 'schema'>, MigrationScope {}

/**
 * Creates the tables and functions, or brings them up to date. Any number of instances may call it at once. With
 * `only: 'fence'`, it creates only what `postgresFence` needs.
 *
 * @returns Whether there was something to do.
 * @throws `StoreError` if the server cannot be reached, the role may not create the tables, or another transaction kept
 * them locked for a minute.
 * @throws `InvalidArgumentError` for an unknown client, schema or option.
 */
export async function migratePostgres(
  options: MigrateOptions & Pick<PostgresDriverOptions, 'client'>,
): Promise<boolean> {
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
export async function migratePostgresUrl(url: string, options: MigrateOptions = {}): Promise<boolean> {
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
  if (durability !== 'crash-safe' && durability !== 'relaxed') {
    throw new InvalidArgumentError('durability', durability, 'crash-safe or relaxed')
  }
  checkBoolean('migrate', migrates)
  const statements = statementsFor(schema)
  const relaxed = String(durability === 'relaxed')
  const channel = `holdfast_${randomBytes(12).toString('hex')}`
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
  const notifyConnection = createNotifyConnection({ connections, channel, statements, prepare: prepared })

  async function call(statement: CallName, values: readonly (string | null)[]): Promise<Row> {
    if (closed) throw new ClosedError('the postgres driver is closed')
    try {
      // The tables are there for as long as a lease is. To look at them could wait for the caller's client.
      const isOfLeases = hasWritten && (statement === 'renew' || statement === 'release')
      if (!isOfLeases) await prepared()
      const isRead = statement === 'inspect' || statement === 'rates'
      const way = isRead ? 'query' : isOfLeases ? statement : 'call'
      const [row] = await connections[way](statements[statement], values)
      if (row === undefined) throw new StoreError(`PostgreSQL answered ${statement} without a row`)
      if (!isRead) hasWritten = true
      return row
    } catch (error) {
      // After any failure the next call checks the tables again: they may have been dropped, or just been created.
      ready = undefined
      throw storeErrorFrom(error, { place: connections.place, isPool: connections.isPool, hasWritten })
    }
  }

  return {
    name: 'postgres',
    place: connections.place,
    capabilities,
    acquire(claims, { secret }) {
      const address = `${channel}:${secret}${notifyConnection.isListening() ? '' : ':polls'}`
      return acquire(claims, { call, address, relaxed })
    },

    async renew(renewals) {
      const units = renewals.map((renewal) => [renewal])
      return withoutUnstorable(units, async (part) => {
        if (part.length === 0) return []
        const ttls = numberArray(part.map(({ ttlMs }) => ttlMs))
        const { answers } = await call('renew', [...leaseArrays(part), ttls, relaxed])
        return parseBooleans(answers as string).map((renewed, index) => {
          if (renewed === undefined) return rowLocked(part[index]?.lockName)
          return renewed ? 'renewed' : 'lost'
        })
      })
    },

    async release(leases) {
      const units = leases.map((lease) => [lease])
      return withoutUnstorable(units, async (part) => {
        if (part.length === 0) return []
        const { answers } = await call('release', [...leaseArrays(part), relaxed])
        return parseBooleans(answers as string).map((ended, index) => ended ?? rowLocked(part[index]?.lockName))
      })
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

    listen: (listener) => notifyConnection.listen(listener),

    async close() {
      if (closed) return
      closed = true
      await notifyConnection.close()
      await connections.close()
    },

    extensions: {
      async inspectRates(query) {
        const { prefix, after, pageSize } = checkInspectQuery(query)
        const { rates } = await call('rates', [prefix, after ?? '', String(pageSize)])
        return ratesFrom(String(rates), pageSize)
      },
    },
  }
}
