import type { Driver } from '../core/driver.ts'
import { openConnections } from '../drivers/postgres/client.ts'
import type { PostgresConnections } from '../drivers/postgres/connections.ts'
import { FORMAT, readVersion } from '../drivers/postgres/migrate.ts'
import { postgresUrl } from '../drivers/postgres/url.ts'
import { openPostgres } from '../drivers/postgres.ts'
import { openPostgresAdvisory } from '../drivers/postgres-advisory.ts'
import { type Finding, unreachable } from './finding.ts'
import { aboutClock } from './redis.ts'
import { examineUse } from './use.ts'

/** The table, or with `advisory` the locks of sessions. */
export async function examinePostgres(url: string, advisory: boolean): Promise<Finding[]> {
  const plain = url.replace(/^(postgres(?:ql)?)\+advisory:/i, '$1:')
  const { target, options } = postgresUrl(advisory ? plain : url)
  const connections = await openConnections(target)
  const findings: Finding[] = []
  try {
    for await (const finding of examineServer(connections)) findings.push(finding)
    if (!advisory) findings.push(...(await aboutSchema(connections, options.schema ?? 'public')))
  } catch (error) {
    return [unreachable(error)]
  } finally {
    await connections.close()
  }
  // Using it would create the tables, and fail on a standby.
  if (findings.some(({ code }) => code === 'POSTGRES_READ_ONLY' || code === 'POSTGRES_SCHEMA')) return findings
  const { schema = 'public' } = options
  const role = target.user ?? 'ROLE'
  const rights = `GRANT USAGE, CREATE ON SCHEMA ${schema} TO ${role};`
  const listenRights = `GRANT SELECT ON ALL SEQUENCES IN SCHEMA ${schema} TO ${role};`
  const open = (): Promise<Driver> => (advisory ? openPostgresAdvisory(url) : openPostgres(url))
  return [...findings, ...(await examineUse(open, rights, listenRights))]
}

async function* examineServer(connections: PostgresConnections): AsyncGenerator<Finding> {
  const before = Date.now()
  const [row = {}] = await connections.query(FACTS, [])
  const offsetMs = Number(row['now_ms']) - (before + Date.now()) / 2
  const version = Number(row['version'])
  if (version < 130_000) {
    yield {
      code: 'POSTGRES_TOO_OLD',
      severity: 'error',
      what: `The server is PostgreSQL ${Math.floor(version / 10_000)}.`,
      why: 'The functions need 13 or later.',
      fix: 'Upgrade PostgreSQL.',
    }
  }
  if (row['standby'] === 'true') {
    yield {
      code: 'POSTGRES_READ_ONLY',
      severity: 'error',
      what: 'The server is a standby, and accepts no writes.',
      why: 'It cannot grant locks.',
      fix: 'Connect to the primary, for example with target_session_attrs=read-write.',
    }
  }
  for (const [setting, why] of TIMEOUTS) {
    if (row[setting] === '0') continue
    yield {
      code: 'POSTGRES_TIMEOUT',
      severity: 'warning',
      what: `${setting} is ${row[setting]}.`,
      why,
      fix: `ALTER ROLE … SET ${setting} = 0; for the role that uses locks.`,
    }
  }
  if (row['fsync'] === 'off') {
    yield {
      code: 'POSTGRES_NOT_DURABLE',
      severity: 'warning',
      what: `fsync is off (synchronous_commit is ${row['synchronous_commit']}).`,
      why: 'After a crash the server may have forgotten leases, which are then granted again while they are held.',
      fix: 'ALTER SYSTEM SET fsync = on;',
    }
  }
  yield* aboutClock(offsetMs)
  if (await hasPooler(connections)) {
    yield {
      code: 'POSTGRES_POOLER',
      severity: 'warning',
      what: 'There is a pooler, such as PgBouncer, between this machine and the server.',
      why: 'In transaction mode, advisory locks are refused, and messages to waiters do not arrive.',
      fix: 'Connect to PostgreSQL itself, or to a pool in session mode.',
    }
  }
}

/** A pooler sends a number of its own as the process id of the session. */
async function hasPooler(connections: PostgresConnections): Promise<boolean> {
  const session = await connections.dedicate({ onEnd() {} })
  try {
    const [row = {}] = await session.query('SELECT pg_backend_pid()::text AS pid')
    return session.serverPid !== undefined && session.serverPid !== String(row['pid'])
  } finally {
    await session.end()
  }
}

/** All as text: each client package has its own types. */
const FACTS = `SELECT current_setting('server_version_num') AS version, pg_is_in_recovery()::text AS standby,
  (extract(epoch FROM clock_timestamp()) * 1000)::text AS now_ms,
  current_setting('statement_timeout') AS statement_timeout,
  current_setting('idle_in_transaction_session_timeout') AS idle_in_transaction_session_timeout,
  coalesce(current_setting('idle_session_timeout', true), '0') AS idle_session_timeout,
  coalesce(current_setting('transaction_timeout', true), '0') AS transaction_timeout,
  current_setting('synchronous_commit') AS synchronous_commit, current_setting('fsync') AS fsync`

const TIMEOUTS = [
  ['idle_session_timeout', 'The server ends sessions that wait for messages, and those that hold advisory locks.'],
  ['statement_timeout', 'The server ends claims that wait for a lock inside the database.'],
  ['transaction_timeout', 'The server ends transactions, and the advisory locks that they hold.'],
  ['idle_in_transaction_session_timeout', 'The server ends idle transactions, and the advisory locks that they hold.'],
] as const

async function aboutSchema(connections: PostgresConnections, schema: string): Promise<Finding[]> {
  const version = await readVersion(connections, schema)
  if (version >= FORMAT) return []
  return [
    {
      code: 'POSTGRES_SCHEMA',
      severity: 'error',
      what: `The tables in the schema ${schema} have version ${version} of ${FORMAT}.`,
      why: 'The driver creates them with its first call, if its role may. Otherwise every call fails.',
      fix: `holdfast migrate --schema ${schema}`,
    },
  ]
}
