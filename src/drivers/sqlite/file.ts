import { closeSync, existsSync, mkdirSync, openSync, realpathSync, statSync } from 'node:fs'
import { homedir } from 'node:os'
import { basename, dirname, isAbsolute, join } from 'node:path'
import { HoldfastError, StoreError } from '../../core/errors.ts'
import { refuseMount } from './mounts.ts'
import { refuseLinks } from './open-files.ts'

/**
 * The path of the embedded default: one file for each user of a machine, in the folder for state that is not
 * configuration.
 */
export function defaultPath(env: NodeJS.ProcessEnv = process.env, platform = process.platform): string {
  return join(stateFolder(env, platform), 'holdfast', 'locks.db')
}

/**
 * Creates the folder and the file if they are missing, private to this user. Existing ones keep their permissions: a
 * team may share them.
 */
export function prepareFile(path: string): void {
  const folder = dirname(path)
  attempt(`the folder ${folder} for the lock file cannot be created`, () => makeFolder(folder))
  attempt(`the lock file ${path} cannot be checked`, () => refusePlace(path))
  // SQLite creates the files beside it with the same permissions.
  attempt(`the lock file ${path} cannot be created`, () => unlessThere(() => closeSync(openSync(path, 'wx', 0o600))))
}

/** Throws for a file that SQLite's own locks do not protect. The file need not exist yet. */
export function refusePlace(path: string): void {
  refuseMount(path, realPathOf(path))
  refuseLinks(path, statSync(path, { throwIfNoEntry: false }))
}

function stateFolder(env: NodeJS.ProcessEnv, platform: NodeJS.Platform): string {
  if (platform === 'win32') return env['LOCALAPPDATA'] || join(homedir(), 'AppData', 'Local')
  // The specification says to ignore a relative path. It would give every working directory its own locks.
  const state = env['XDG_STATE_HOME'] ?? ''
  if (isAbsolute(state)) return state
  if (platform === 'darwin') return join(homedir(), 'Library', 'Application Support')
  return join(homedir(), '.local', 'state')
}

/** Resolves links, because one may lead from a local folder to a network share. */
function realPathOf(path: string): string {
  try {
    return realpathSync(path)
  } catch {
    // The file does not exist yet, but its folder does.
    return join(realpathSync(dirname(path)), basename(path))
  }
}

/** Not `mkdirSync` with `recursive`: where nothing can be created, such as below /proc, that never returns. */
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

/** Errors that may disappear with time. A missing folder, or one of another user, will not. */
const TRANSIENT = new Set(['ENOSPC', 'EDQUOT', 'EMFILE', 'ENFILE', 'EIO', 'EAGAIN', 'EBUSY', 'ENOMEM'])

function attempt(failure: string, step: () => void): void {
  try {
    step()
  } catch (error) {
    if (error instanceof HoldfastError) throw error
    const said = error instanceof Error ? error.message : String(error)
    const retryable = TRANSIENT.has((error as NodeJS.ErrnoException).code ?? '')
    throw new StoreError(`${failure}: ${said}`, { cause: error, retryable })
  }
}
