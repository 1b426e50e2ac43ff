import { randomBytes } from 'node:crypto'
import { checkInspectQuery } from '../core/arguments.ts'
import type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  InspectPage,
  LeaseRecord,
  LeaseRef,
  Renewal,
} from '../core/driver.ts'
import { ClosedError, InvalidArgumentError, StoreError } from '../core/errors.ts'
import { checkOptions, optionNames } from '../core/options.ts'
import { booleanArray, numberArray, parseBooleans, parseNumbers, parseTexts, textArray } from './postgres/arrays.ts'
import { connectionsOf, openConnections, type PostgresClient } from './postgres/client.ts'
import type { PostgresConnections, Row } from './postgres/connections.ts'
import { rowLocked, storeErrorFrom } from './postgres/errors.ts'
import {
  checkScope,
  latestVersion,
  type MigrationScope,
  migrate,
  readVersion,
  statementsFor,
} from './postgres/migrate.ts'
import { NotifyConnection } from './postgres/notify-connection.ts'
import { consume } from './postgres/rates.ts'
import { postgresUrl } from './postgres/url.ts'
import { leftOver } from './shared/groups.ts'

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
  groups: true,
}

export interface PostgresDriverOptions {
  /**
   * A `Pool` or a connected `Client` of pg, or what `postgres()` gives. It stays the caller's: the driver never closes
   * it.
   */
  readonly client: PostgresClient
  /** Where the tables are: `public` if not said. */
  readonly schema?: string
  /**
   * `crash-safe`, the default: a lease that was granted is still there after the server crashed. `relaxed`: it is
   * granted before it has reached the disk (`synchronous_commit = off`, for our statements only), so the leases of the
   * last moment before a crash may be forgotten and granted to others; their fencing tokens are higher all the same.
   */
  readonly durability?: 'crash-safe' | 'relaxed'
  /** Whether the first call creates the tables, or brings them up to date. True if not said. */
  readonly migrate?: boolean
}

const OPTIONS = optionNames<PostgresDriverOptions>({ client: true, schema: true, durability: true, migrate: true })

/** Leases in a table, through a client that the caller already has. Nothing is sent before the first call. */
export function postgresDriver(options: PostgresDriverOptions): Driver {
  const { client, ...rest } = checkOptions(options, OPTIONS)
  return driverOn(connectionsOf(client), rest)
}

/**
 * `postgres://…`, with parameters that the client knows, and `holdfast_schema`, `holdfast_durability`,
 * `holdfast_migrate`. Opens a small pool of its own, with pg if that is installed, else with postgres. Rejects with
 * `InvalidArgumentError` for a URL of which any part is not understood.
 */
export async function openPostgres(url: string): Promise<Driver> {
  const { target, options } = postgresUrl(url)
  const reopen = { module: import.meta.url, name: 'openPostgres', args: [url] }
  return { ...driverOn(await openConnections(target), options), reopen }
}

export interface MigrateOptions extends Pick<PostgresDriverOptions, 'schema'>, MigrationScope {}

/**
 * Creates the tables and functions, or brings them up to date; safe from many instances at once. Returns the numbers of
 * what was run. With `only: 'fence'`, it makes nothing but what `postgresFence` needs.
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

/** The same for the database that a URL names. `schema` comes before the URL's own. */
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
  const listening = new NotifyConnection({
    connections,
    channel,
    hello: (payload) => connections.query(statements.hello, [channel, payload]),
    granted: statements.granted,
  })
  let ready: Promise<void> | undefined
  let hasWritten = false
  let closed = false

  async function call(
    statement: 'acquire' | 'acquire_groups' | 'steal' | 'renew' | 'release' | 'inspect' | 'consume' | 'change_rate',
    values: readonly (string | null)[],
  ): Promise<Row> {
    if (closed) throw new ClosedError('the postgres driver is closed')
    ready ??= prepare(connections, schema, migrates)
    try {
      await ready
      const send = statement === 'inspect' ? connections.query : connections.call
      const [row] = await send(statements[statement], values)
      if (statement !== 'inspect') hasWritten = true
      return row as Row
    } catch (error) {
      // Whatever it was that failed, the next call looks again whether the tables are there: they may have been
      // dropped, or just been made.
      ready = undefined
      throw storeErrorFrom(error, { place: connections.place, several: connections.several, hasWritten })
    }
  }

  async function acquire(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    if (claims.length === 0) return []
    const row = await call('acquire', [
      textArray(claims.map(({ lockName }) => lockName)),
      textArray(claims.map(({ claimId }) => claimId)),
      textArray(claims.map(({ holderId }) => holderId)),
      booleanArray(claims.map(({ mode }) => mode === 'shared')),
      numberArray(claims.map(({ limit }) => limit)),
      numberArray(claims.map(({ permits }) => permits)),
      numberArray(claims.map(({ ttlMs }) => ttlMs)),
      numberArray(claims.map(({ waitMs }) => waitMs)),
      textArray(claims.map(({ metadata }) => metadata && JSON.stringify(metadata))),
      channel,
      relaxed,
    ])
    return acquireAnswers(claims, row)
  }

  async function steal({ lockName, claimId, holderId, ttlMs, metadata, stealUpTo }: Claim): Promise<AcquireAnswer> {
    const json = metadata === undefined ? null : JSON.stringify(metadata)
    const upTo = stealUpTo === undefined ? null : String(stealUpTo)
    const row = await call('steal', [lockName, claimId, holderId, String(ttlMs), json, relaxed, upTo])
    if (row['fencing_token'] === null) return { granted: false }
    return { granted: true, fencingToken: Number(row['fencing_token']), ttlMs, acquiredAtMs: Number(row['granted_at']) }
  }

  async function acquireGroups(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    const row = await call('acquire_groups', [
      textArray(claims.map(({ lockName }) => lockName)),
      textArray(claims.map(({ claimId }) => claimId)),
      textArray(claims.map(({ group }) => group)),
      textArray(claims.map(({ holderId }) => holderId)),
      numberArray(claims.map(({ ttlMs }) => ttlMs)),
      textArray(claims.map(({ metadata }) => metadata && JSON.stringify(metadata))),
      relaxed,
    ])
    return groupAnswers(claims, row)
  }

  /**
   * Thefts and groups are rare: each theft is a call of its own, and so are groups that follow each other, after what stood
   * before them in the list. What fails, fails for its own part of the list.
   */
  async function acquireInParts(claims: readonly Claim[]): Promise<readonly (AcquireAnswer | Error)[]> {
    const start = claims.findIndex(({ steal, group }) => steal || group !== undefined)
    if (start === -1) return acquire(claims)
    const first = claims[start] as Claim
    const groups = claims.slice(start)
    const next = first.steal ? 1 : groups.findIndex(({ group }) => group === undefined)
    const end = next === -1 ? claims.length : start + next
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
      const { answers } = await call('renew', [
        ...refArrays(renewals),
        numberArray(renewals.map(({ ttlMs }) => ttlMs)),
        relaxed,
      ])
      return parseBooleans(answers as string).map((renewed, index) => {
        if (renewed === undefined) return rowLocked(renewals[index]?.lockName)
        return renewed ? 'renewed' : 'lost'
      })
    },

    async release(leases) {
      if (leases.length === 0) return []
      const { answers } = await call('release', [...refArrays(leases), relaxed])
      return parseBooleans(answers as string).map((ended, index) => ended ?? rowLocked(leases[index]?.lockName))
    },

    async inspect(query) {
      const { lockName, prefix, after, pageSize } = checkInspectQuery(query)
      const { page } = await call('inspect', [lockName ?? null, prefix, after ?? null, String(pageSize)])
      return JSON.parse(page as string) as InspectPage
    },

    consume: (requests) =>
      consume(requests, {
        step: (values) => call('consume', [...values, relaxed]),
        change: (values) => call('change_rate', [...values, relaxed]),
      }),

    listen: (listener) => listening.listen(listener),

    async close() {
      if (closed) return
      closed = true
      await listening.close()
      await connections.close()
    },
  }
}

async function prepare(connections: PostgresConnections, schema: string, migrates: boolean): Promise<void> {
  if ((await readVersion(connections, schema)) >= latestVersion()) return
  if (!migrates) {
    throw new StoreError(
      `the lock tables in the schema "${schema}" at ${connections.place} are missing or old: ` +
        `run "holdfast migrate --schema ${schema}"`,
      { retryable: false },
    )
  }
  await migrate(connections, schema)
}

function acquireAnswers(claims: readonly Claim[], row: Row): (AcquireAnswer | StoreError)[] {
  const numbers = (name: string): number[] => parseNumbers(row[name] as string | null)
  const places = (name: string): Map<string, number> =>
    new Map(parseTexts(row[name] as string | null).map((claimId, index) => [claimId, index]))
  const [granted, refused] = [places('granted_claims'), places('refused_claims')]
  const [tokens, acquired] = [numbers('granted_tokens'), numbers('granted_at')]
  const [ahead, until] = [numbers('refused_ahead'), numbers('refused_until')]
  const answeredAtMs = Number(row['refused_at'])
  const holders = JSON.parse((row['holders'] as string | null) ?? '{}') as Record<string, LeaseRecord>
  return claims.map(({ lockName, claimId, ttlMs, waitMs }) => {
    const grant = granted.get(claimId)
    if (grant !== undefined) {
      return { granted: true, fencingToken: tokens[grant] as number, ttlMs, acquiredAtMs: acquired[grant] as number }
    }
    const refusal = refused.get(claimId)
    if (refusal === undefined) return rowLocked(lockName)
    const holder = holders[lockName]
    // Its own, if it was handed the lock while the others of the list were looked at.
    const seen = holder === undefined || holder.claimId === claimId ? {} : { holder }
    if (waitMs === 0) return { granted: false, ...seen, answeredAtMs }
    const [aheadOf, askAgainMs] = [ahead[refusal] as number, until[refusal] as number]
    return { granted: false, ...seen, ahead: aheadOf, askAgainMs, answeredAtMs }
  })
}

function groupAnswers(claims: readonly Claim[], row: Row): (AcquireAnswer | StoreError)[] {
  const ids = (name: string): string[] => parseTexts(row[name] as string | null)
  const granted = new Map(ids('granted_claims').map((claimId, index) => [claimId, index]))
  const [tokens, acquired] = [
    parseNumbers(row['granted_tokens'] as string | null),
    parseNumbers(row['granted_at'] as string | null),
  ]
  const [refused, notKnown] = [new Set(ids('refused_claims')), new Set(ids('not_known'))]
  const refusedGroups = new Set(claims.filter(({ claimId }) => refused.has(claimId)).map(({ group }) => group))
  const answeredAtMs = Number(row['refused_at'])
  const holders = JSON.parse((row['holders'] as string | null) ?? '{}') as Record<string, LeaseRecord>
  return claims.map(({ lockName, claimId, group, ttlMs }) => {
    const at = granted.get(claimId)
    if (at !== undefined) {
      return { granted: true, fencingToken: tokens[at] as number, ttlMs, acquiredAtMs: acquired[at] as number }
    }
    const holder = holders[lockName]
    if (refused.has(claimId)) return { granted: false, ...(holder && { holder }), answeredAtMs }
    if (!refusedGroups.has(group)) return rowLocked(lockName)
    return notKnown.has(claimId) ? leftOver(lockName) : { granted: false, free: true, answeredAtMs }
  })
}

const refArrays = (leases: readonly (LeaseRef | Renewal)[]): string[] => [
  textArray(leases.map(({ lockName }) => lockName)),
  textArray(leases.map(({ claimId }) => claimId)),
  numberArray(leases.map(({ fencingToken }) => fencingToken)),
]

function checkSettings(durability: unknown, migrates: unknown): void {
  if (durability !== 'crash-safe' && durability !== 'relaxed') {
    throw new InvalidArgumentError('durability', durability, 'crash-safe or relaxed')
  }
  if (typeof migrates !== 'boolean') throw new InvalidArgumentError('migrate', migrates, 'true or false')
}
