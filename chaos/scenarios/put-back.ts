import pg from 'pg'
import { until } from '../../test/harness/processes.ts'
import { DATABASE } from '../connect.ts'
import { pause } from '../stage.ts'
import { PATIENCE_MS } from './redis-node.ts'

const [COPY, OLD] = [`${DATABASE}_copy`, `${DATABASE}_old`]
/** The data of tables and sequences may be put back when so much time has passed since the last grant. */
const SINCE_LAST_GRANT_MS = 1_100
/** Statements of the administrator end with no fault of the clients. */
const UNHURRIED = '-c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0'

export interface PutBack {
  port: number
  lagMs: number
  signal: AbortSignal
  /** Called when the sessions end, for a copy to be made and for it to be put back. */
  losing(lost: { endsAll?: boolean }, work: () => Promise<boolean>): Promise<boolean>
}

/** Puts the database back to a copy of some time ago. It is made as a template, so no session may be open. */
export async function putCopyBack({ port, lagMs, signal, losing }: PutBack): Promise<boolean> {
  const admin = await connected(port, 'postgres')
  try {
    const copied = await losing({}, () =>
      behindClosedDoors(admin, () => isDone(admin, `CREATE DATABASE ${COPY} TEMPLATE ${DATABASE}`)),
    )
    if (!copied) return false
    await pause(lagMs, signal)
    return await losing({}, () =>
      behindClosedDoors(
        admin,
        async () =>
          (await isDone(admin, `ALTER DATABASE ${DATABASE} RENAME TO ${OLD}`)) &&
          (await isDone(admin, `ALTER DATABASE ${COPY} RENAME TO ${DATABASE}`)),
      ),
    )
  } finally {
    await admin.end()
    await tidyUp(port)
  }
}

/** Puts the values of the sequences back, and empties the tables: the dump was made when nothing was held. */
export async function putDataBack({ port, lagMs, signal, losing }: PutBack): Promise<boolean> {
  const admin = await connected(port, 'postgres')
  const inside = await connected(port, DATABASE)
  try {
    const { rows } = await inside.query(
      `SELECT string_agg(format('SELECT setval(%L, %s)', sequencename, last_value), ';') AS dump FROM pg_sequences
       WHERE schemaname = 'public' AND last_value IS NOT NULL`,
    )
    if (rows[0]?.dump === null) return false
    await pause(lagMs, signal)
    const tables = 'distributed_locks, holdfast_leases, holdfast_waiters, holdfast_rates'
    const pid = (await inside.query('SELECT pg_backend_pid() AS pid')).rows[0]?.pid
    const restore = async (): Promise<boolean> => {
      await pause(SINCE_LAST_GRANT_MS, new AbortController().signal)
      return isDone(inside, `TRUNCATE ${tables}; ${rows[0]?.dump}`)
    }
    return await losing({ endsAll: true }, () => behindClosedDoors(admin, restore, pid))
  } finally {
    await inside.end().catch(() => {})
    await admin.end()
    await tidyUp(port)
  }
}

/** While no session but `pid` is connected to the database, and none can connect. */
async function behindClosedDoors(admin: pg.Client, work: () => Promise<boolean>, pid = 0): Promise<boolean> {
  if (!(await isDone(admin, `ALTER DATABASE ${DATABASE} ALLOW_CONNECTIONS false`))) return false
  try {
    const sessions = `FROM pg_stat_activity WHERE datname = '${DATABASE}' AND pid <> ${pid}`
    await isDone(admin, `SELECT pg_terminate_backend(pid) ${sessions}`)
    await until(async () => (await admin.query(`SELECT 1 ${sessions}`)).rows.length === 0, {
      timeoutMs: PATIENCE_MS,
      failure: () => 'sessions did not end',
    })
    return await work()
  } catch {
    return false // Another fault has ended the session of the administrator.
  } finally {
    await isDone(admin, `ALTER DATABASE ${DATABASE} ALLOW_CONNECTIONS true`)
  }
}

/** Afterwards there is one database with its name, also if something has failed, and it can be connected to. */
async function tidyUp(port: number): Promise<void> {
  const tidy = async (): Promise<boolean> => {
    const admin = await connected(port, 'postgres')
    try {
      const { rows } = await admin.query('SELECT datname FROM pg_database')
      const names = rows.map(({ datname }) => datname)
      if (!names.includes(DATABASE)) await admin.query(`ALTER DATABASE ${COPY} RENAME TO ${DATABASE}`)
      for (const name of names.filter((each) => each === OLD || (each === COPY && names.includes(DATABASE)))) {
        await admin.query(`DROP DATABASE ${name} WITH (FORCE)`)
      }
      await admin.query(`ALTER DATABASE ${DATABASE} ALLOW_CONNECTIONS true`)
      return true
    } catch {
      return false
    } finally {
      await admin.end()
    }
  }
  await until(tidy, { timeoutMs: PATIENCE_MS, failure: () => `${DATABASE} is not what it was` })
}

async function connected(port: number, database: string): Promise<pg.Client> {
  const client = new pg.Client({ host: '127.0.0.1', port, user: 'postgres', database, options: UNHURRIED })
  client.on('error', () => {})
  await client.connect()
  return client
}

const isDone = (client: pg.Client, sql: string): Promise<boolean> =>
  client.query(sql).then(
    () => true,
    () => false,
  )
