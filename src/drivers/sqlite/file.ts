import { closeSync, existsSync, mkdirSync, openSync, realpathSync, statSync } from 'node:fs'
import { homedir } from 'node:os'
import { basename, dirname, isAbsolute, join } from 'node:path'
import { HoldfastError, StoreError } from '../../core/errors.ts'
import { refuseMount } from './mounts.ts'
import { refuseLinks } from './open-files.ts'

/**
 * Where the embedded default lies: one file for each user of a machine, in the place for state that is no
 * configuration.
 */
export function defaultPath(env: NodeJS.ProcessEnv = process.env, platform = process.platform): string {
  return join(stateFolder(env, platform), 'holdfast', 'locks.db')
}

/**
 * Makes the folder and the file if need be, for this user alone. One that is there keeps its permissions: a team may
 * share it.
 */
export function prepareFile(path: string): void {
  const folder = dirname(path)
  attempt(`the folder ${folder} for the lock file cannot be made`, () => makeFolder(folder))
  attempt(`the lock file ${path} cannot be looked at`, () => refusePlace(path))
  // SQLite makes the files beside it with the same permissions.
  attempt(`the lock file ${path} cannot be made`, () => unlessThere(() => closeSync(openSync(path, 'wx', 0o600))))
}

/** Throws for a file that SQLite's own locks do not protect, wherever it lies. It need not be there yet. */
export function refusePlace(path: string): void {
  refuseMount(path, realPathOf(path))
  refuseLinks(path, statSync(path, { throwIfNoEntry: false }))
}

function stateFolder(env: NodeJS.ProcessEnv, platform: NodeJS.Platform): string {
  if (platform === 'win32') return env['LOCALAPPDATA'] || join(homedir(), 'AppData', 'Local')
  // The specification says to ignore a relative one: it would give every working directory locks of its own.
  const state = env['XDG_STATE_HOME'] ?? ''
  if (isAbsolute(state)) return state
  if (platform === 'darwin') return join(homedir(), 'Library', 'Application Support')
  return join(homedir(), '.local', 'state')
}

/** A link may lead from a local folder to a share. */
function realPathOf(path: string): string {
  try {
    return realpathSync(path)
  } catch {
    // The file is not there yet; its folder is.
    return join(realpathSync(dirname(path)), basename(path))
  }
}

/** Not `mkdirSync` with `recursive`: in a place where nothing can be made, such as below /proc, that never returns. */
function makeFolder(folder: string): void {
  if (existsSync(folder)) return
  makeFolder(dirname(folder))
  unlessThere(() => mkdirSync(folder, { mode: 0o700 }))
}

function unlessThere(make: () => void): void {
  try {
    make()
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
}

/** What another process or some time may mend. A folder that is missing or belongs to another user, it will not. */
const PASSING = new Set(['ENOSPC', 'EDQUOT', 'EMFILE', 'ENFILE', 'EIO', 'EAGAIN', 'EBUSY', 'ENOMEM'])

function attempt(failure: string, step: () => void): void {
  try {
    step()
  } catch (error) {
    if (error instanceof HoldfastError) throw error
    const said = error instanceof Error ? error.message : String(error)
    const retryable = PASSING.has((error as NodeJS.ErrnoException).code ?? '')
    throw new StoreError(`${failure}: ${said}`, { cause: error, retryable })
  }
}
