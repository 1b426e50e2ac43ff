import { execFile } from 'node:child_process'
import { accessSync, constants, existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { cacheFolder } from './folders.ts'
import { missingPythonPackages } from './python.ts'

export interface Binary {
  path: string
  /** Where a binary that was unpacked, not installed, finds its libraries. */
  env: Record<string, string>
}

export type BinaryName = keyof typeof DEBIAN_PACKAGES

/**
 * Finds server binaries on PATH, in Debian's folders or in our cache. Fetches missing ones from Debian's packages: root
 * installs the packages, any other user unpacks them into the cache.
 */
export async function findBinaries<Name extends BinaryName>(names: readonly Name[]): Promise<Record<Name, Binary>> {
  const missing = names.filter((name) => look(name) === undefined)
  if (missing.length > 0) {
    // One at a time in a process: two apt-get would only wait for each other's lock.
    const before = fetching.catch(() => {})
    fetching = before.then(() => fetchPackages(missing.filter((name) => look(name) === undefined)))
    await fetching
  }
  return Object.fromEntries(names.map((name) => [name, look(name) ?? fail(name)])) as Record<Name, Binary>
}

/** Fetches everything that the tests need and this machine lacks, before test files run in parallel. */
export async function provision(): Promise<void> {
  const pythonPackages = await missingPythonPackages()
  const canInstall = process.getuid?.() === 0 && onPath('apt-get') !== undefined
  if (pythonPackages.length > 0 && canInstall) {
    const missing = BINARIES.filter((name) => look(name) === undefined).map((name) => DEBIAN_PACKAGES[name])
    // One call for both. If it fails, the next line fails for a server; for Python, only the Python tests do.
    // A user who is not root has to install those: a Python package does not work where it is unpacked.
    await install([...new Set([...missing, ...pythonPackages])]).catch(() => {})
  }
  await findBinaries(BINARIES)
}

const DEBIAN_PACKAGES = {
  'redis-server': 'redis-server',
  postgres: 'postgresql',
  initdb: 'postgresql',
  pg_basebackup: 'postgresql',
  pgbouncer: 'pgbouncer',
  chromium: 'chromium',
  prometheus: 'prometheus',
  promtool: 'prometheus',
  tmux: 'tmux',
} as const

const BINARIES = Object.keys(DEBIAN_PACKAGES) as BinaryName[]

const run = promisify(execFile)
let fetching: Promise<void> = Promise.resolve()

async function fetchPackages(names: readonly BinaryName[]): Promise<void> {
  const packages = [...new Set(names.map((name) => DEBIAN_PACKAGES[name]))]
  if (packages.length === 0 || !onPath('apt-get')) return
  try {
    if (process.getuid?.() === 0) await install(packages)
    else for (const each of packages) await unpack(each)
  } catch (cause) {
    throw new Error(`cannot fetch Debian packages: install ${packages.join(' and ')} yourself`, { cause })
  }
}

async function install(packages: string[]): Promise<void> {
  const options = ['-o', 'DPkg::Lock::Timeout=180', '-q', '-y', '--no-install-recommends']
  await aptGet(['update', ...options.slice(0, 3)])
  await withoutStartingServices(() => aptGet(['install', ...options, ...packages]))
}

/**
 * Debian starts a server when it is installed. The documented way to prevent this is a policy-rc.d that exits with 101.
 * One that exists already is left alone.
 */
async function withoutStartingServices(work: () => Promise<unknown>): Promise<void> {
  const policy = '/usr/sbin/policy-rc.d'
  const isOurs = !existsSync(policy)
  if (isOurs) writeFileSync(policy, '#!/bin/sh\nexit 101\n', { mode: 0o755, flag: 'wx' })
  try {
    await work()
  } finally {
    if (isOurs) rmSync(policy, { force: true })
  }
}

/** Unpacks the package, and the dependencies that the machine lacks, into the cache. */
async function unpack(name: string): Promise<void> {
  const target = join(cacheFolder(), 'debian', name)
  const work = `${target}.${process.pid}`
  const lists = join(work, 'lists')
  const root = join(work, 'root')
  for (const folder of [join(lists, 'partial'), join(work, 'apt/archives/partial'), root]) {
    mkdirSync(folder, { recursive: true })
  }
  const options = ['-q', '-o', `Dir::State::lists=${lists}`, '-o', `Dir::Cache=${join(work, 'apt')}`]
  try {
    await aptGet(['update', ...options])
    const plan = await aptGet(['install', '--simulate', '--no-install-recommends', ...options, name])
    const needed = [...plan.matchAll(/^Inst (\S+)/gm)].flatMap((match) => match[1] ?? [])
    await aptGet(['download', ...options, ...needed], work)
    for (const file of readdirSync(work).filter((each) => each.endsWith('.deb'))) {
      await run('dpkg', ['-x', join(work, file), root], { timeout: 120_000 })
    }
    if (!existsSync(target)) renameSync(root, target)
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
}

/** apt-get can wait for dpkg's lock, but not for the lock on its package lists. */
async function aptGet(args: string[], cwd = '/'): Promise<string> {
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive', LC_ALL: 'C' }
  for (let attempt = 1; ; attempt++) {
    try {
      const { stdout } = await run('apt-get', args, { cwd, env, timeout: 300_000, maxBuffer: 64 << 20 })
      return stdout
    } catch (error) {
      if (attempt === 60 || !/Could not get lock|Unable to lock/.test(String(error))) throw error
      await sleep(1_000)
    }
  }
}

function look(name: BinaryName): Binary | undefined {
  const path = onPath(name) ?? firstIn(debianFolders('/'), name)
  if (path !== undefined) return { path, env: {} }
  const root = join(cacheFolder(), 'debian', DEBIAN_PACKAGES[name])
  const unpacked = firstIn(debianFolders(root), name)
  if (unpacked === undefined) return undefined
  const libraries = [join(root, 'usr/lib'), join(root, 'lib')].flatMap((folder) => [folder, ...tripletsIn(folder)])
  return { path: unpacked, env: { LD_LIBRARY_PATH: libraries.join(delimiter) } }
}

function onPath(name: string): string | undefined {
  return firstIn((process.env['PATH'] ?? '').split(delimiter).filter(Boolean), name)
}

/** The newest PostgreSQL first. Includes sbin, where pgbouncer is, because only root has it on PATH. */
function debianFolders(root: string): string[] {
  const versions = join(root, 'usr/lib/postgresql')
  const newestFirst = existsSync(versions) ? readdirSync(versions).sort((a, b) => Number(b) - Number(a)) : []
  return [
    ...newestFirst.map((version) => join(versions, version, 'bin')),
    join(root, 'usr/sbin'),
    join(root, 'usr/bin'),
  ]
}

function tripletsIn(folder: string): string[] {
  if (!existsSync(folder)) return []
  return readdirSync(folder).flatMap((each) => (each.endsWith('-linux-gnu') ? [join(folder, each)] : []))
}

function firstIn(folders: string[], name: string): string | undefined {
  // Symbolic links are not resolved: Debian's redis-server is a link to redis-check-rdb, which acts by its own name.
  return folders.map((folder) => join(folder, name)).find(isExecutable)
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

function fail(name: BinaryName): never {
  throw new Error(
    `cannot find ${name}: install it (Debian and Ubuntu: apt-get install ${DEBIAN_PACKAGES[name]}), or set the ` +
      'HOLDFAST_TEST_…_URL of a running server (see test/harness/shared-servers.ts)',
  )
}
