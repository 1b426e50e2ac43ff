import { execFile, spawnSync } from 'node:child_process'
import { chownSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { findBinaries } from './binaries.ts'
import type { ShiftedClock, SlowDisk } from './clock-shim.ts'
import { type Folder, makeFolder } from './folders.ts'
import { freePort } from './ports.ts'
import { launch, type Server } from './server-process.ts'
import { askPostgres } from './wire.ts'

export interface PostgresOptions {
  /** Server settings, such as `{ idle_session_timeout: '1s' }`. `fsync` is off by default. */
  settings?: Record<string, string>
  clock?: ShiftedClock
  disk?: SlowDisk
  /** Offers TLS with this certificate and its key, as PEM. */
  tls?: { cert: string; key: string }
}

/** A PostgreSQL server with one superuser `postgres`, who needs no password. */
export async function startPostgres(options: PostgresOptions = {}): Promise<Server> {
  const args = ['-A', 'trust', '-U', 'postgres', '-E', 'UTF8', '--locale=C', '--no-sync', '--no-instructions']
  return startOn(await makeData('initdb', args), options)
}

/**
 * A streaming replica that can be read from and promoted (`SELECT pg_promote()`). The setting `primary_conninfo` gives
 * it another way to its primary.
 */
export async function startPostgresReplica(primaryPort: number, options: PostgresOptions = {}): Promise<Server> {
  const primary = ['-h', '127.0.0.1', '-p', String(primaryPort), '-U', 'postgres']
  const args = [...primary, '-X', 'stream', '--checkpoint=fast', '--no-sync', '--write-recovery-conf']
  return startOn(await makeData('pg_basebackup', args), options)
}

interface DataFolder {
  readonly folder: Folder
  readonly data: string
}

async function makeData(command: 'initdb' | 'pg_basebackup', args: readonly string[]): Promise<DataFolder> {
  const binary = (await findBinaries([command]))[command]
  const folder = makeFolder('postgres')
  const user = unprivilegedUser()
  const data = join(folder.path, 'data')
  if (user) chownSync(folder.path, user.uid, user.gid)
  try {
    const env = { ...process.env, ...binary.env, LC_ALL: 'C' }
    const options = { ...user, env, cwd: folder.path, timeout: 60_000 }
    await promisify(execFile)(binary.path, ['-D', data, ...args], options)
  } catch (error) {
    folder.remove()
    throw error
  }
  return { folder, data }
}

async function startOn({ folder, data }: DataFolder, { settings, clock, disk, tls }: PostgresOptions): Promise<Server> {
  const binary = (await findBinaries(['postgres'])).postgres
  if (tls) writeTls(data, tls)
  const port = await freePort()
  const all = {
    port: String(port),
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '', // This user often may not write to the default folder.
    max_connections: '200',
    dynamic_shared_memory_type: 'mmap', // In the data folder, so that it is removed with it, even after a SIGKILL.
    fsync: 'off', // A test's data need not survive a crash of the machine. They do survive a SIGKILL of the server.
    ...(tls && { ssl: 'on' }),
    ...settings,
  }
  return launch({
    name: 'postgres',
    command: binary.path,
    args: ['-D', data, ...Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`])],
    port,
    url: `postgres://postgres@127.0.0.1:${port}/postgres`,
    folder,
    user: unprivilegedUser(),
    env: { ...binary.env, ...clock?.env, ...disk?.env },
    // Fast for an orderly end. Immediate for the last one: unlike SIGKILL, it still frees its shared memory.
    signals: { stop: 'SIGINT', reap: 'SIGQUIT' },
    isReady: async () => (await dataFolder(port)) === data,
    cleanUp: () => removeSharedMemory(data),
  })
}

/** In the default paths of PostgreSQL. It refuses a key that other users may read. */
function writeTls(data: string, { cert, key }: { cert: string; key: string }): void {
  const user = unprivilegedUser()
  for (const [name, pem] of Object.entries({ 'server.crt': cert, 'server.key': key })) {
    const file = join(data, name)
    writeFileSync(file, pem, { mode: 0o600 })
    if (user) chownSync(file, user.uid, user.gid)
  }
}

export interface PgBouncerOptions {
  /** Settings of pgbouncer.ini, such as `{ pool_mode: 'session' }`. */
  settings?: Record<string, string>
}

/** PgBouncer in transaction mode with three connections, in front of a PostgreSQL of the harness. */
export async function startPgBouncer(postgres: Server, { settings }: PgBouncerOptions = {}): Promise<Server> {
  const binary = (await findBinaries(['pgbouncer'])).pgbouncer
  const port = await freePort()
  const folder = makeFolder('pgbouncer')
  const all = {
    listen_addr: '127.0.0.1',
    listen_port: String(port),
    unix_socket_dir: '',
    auth_type: 'trust',
    auth_file: join(folder.path, 'users.txt'),
    admin_users: 'postgres',
    pool_mode: 'transaction',
    default_pool_size: '3',
    max_client_conn: '500',
    ignore_startup_parameters: 'extra_float_digits',
    ...settings,
  }
  const file = join(folder.path, 'pgbouncer.ini')
  writeFileSync(join(folder.path, 'users.txt'), '"postgres" ""\n')
  writeFileSync(
    file,
    [
      '[databases]',
      `* = host=127.0.0.1 port=${postgres.port}`,
      '[pgbouncer]',
      ...Object.entries(all).map(([name, value]) => `${name} = ${value}`),
      '',
    ].join('\n'),
  )
  return launch({
    name: 'pgbouncer',
    command: binary.path,
    args: [file],
    port,
    url: `postgres://postgres@127.0.0.1:${port}/postgres`,
    folder,
    user: unprivilegedUser(),
    env: binary.env,
    signals: { stop: 'SIGTERM', reap: 'SIGKILL' },
    isReady: async () => (await dataFolder(port)) === (await dataFolder(postgres.port)),
  })
}

async function dataFolder(port: number): Promise<string | null | undefined> {
  return (await askPostgres({ port, timeoutMs: 1_000 }, 'SHOW data_directory'))[0]?.[0]
}

/**
 * A SIGKILL leaves a small segment of System V shared memory behind, and a machine has room for 4,096 of them. A server
 * that ended by itself has removed its segment and its lock file, whose seventh line names the segment.
 */
function removeSharedMemory(data: string): void {
  const lockFile = join(data, 'postmaster.pid')
  const id = existsSync(lockFile) ? readFileSync(lockFile, 'utf8').split('\n')[6]?.trim().split(/\s+/)[1] : undefined
  if (id) spawnSync('ipcrm', ['-m', id], { timeout: 5_000 })
}

/** As root, another user: PostgreSQL refuses to run as root. Otherwise the same user. */
function unprivilegedUser(): { uid: number; gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined
  const users = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'))
  const user = users.find(([name]) => name === 'postgres') ?? users.find(([name]) => name === 'nobody')
  if (user === undefined) throw new Error('PostgreSQL does not run as root, and there is no user postgres or nobody')
  return { uid: Number(user[2]), gid: Number(user[3]) }
}
