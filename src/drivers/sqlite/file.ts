import {
  type BigIntStats,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  realpathSync,
  type Stats,
  statSync,
} from 'node:fs'
import { homedir } from 'node:os'
import { basename, dirname, isAbsolute, join } from 'node:path'
import { HoldfastError, StoreError } from '../../core/errors.ts'
import { codeOf, isA, messageOf, safeCause } from '../../core/foreign-errors.ts'

/** The embedded default: one file for each user of a machine, in the folder for state. */
export function defaultPath(env: NodeJS.ProcessEnv = process.env, platform = process.platform): string {
  return join(stateFolder(env, platform), 'holdfast', 'locks.db')
}

/** Creates a missing folder and file, private to this user. Existing ones keep their permissions. */
export function prepareFile(path: string): void {
  const folder = dirname(path)
  attempt(`the folder ${folder} for the lock file cannot be created`, () => makeFolder(folder))
  attempt(`the lock file ${path} cannot be checked`, () => refusePlace(path))
  // SQLite creates the files beside it with the same permissions.
  attempt(`the lock file ${path} cannot be created`, () =>
    ignoring('EEXIST', () => closeSync(openSync(path, 'wx', 0o600))),
  )
}

/**
 * Throws for a file that SQLite's own locks do not protect: one on a network share, a mount point, whose write-ahead
 * log would be beside another name of the same file, or one with several names. The file need not exist yet. Only Linux
 * lists its mounts.
 */
export function refusePlace(path: string): void {
  if (process.platform === 'linux') {
    const realPath = realPathOf(path)
    const mountinfo = readFileSync('/proc/self/mountinfo', 'utf8')
    const network = networkFileSystemOf(realPath, mountinfo)
    if (network !== undefined) {
      const advice = 'choose a local disk, or a store with a server'
      const reason = `a network share (${network}), where SQLite's locks do not exclude other machines; ${advice}`
      throw new StoreError(`the lock file ${path} is on ${reason}`, { retryable: false })
    }
    if (isMountPoint(realPath, mountinfo)) {
      throw new StoreError(
        `the lock file ${path} is a mount point (as with "docker run -v file:file"), so other processes do not see ` +
          'the write-ahead log that SQLite keeps beside it; mount its folder instead',
        { retryable: false },
      )
    }
  }
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
  ignoring('EEXIST', () => mkdirSync(folder, { mode: 0o700 }))
}

/** Does nothing if the step fails with this error code. */
export function ignoring(code: string, step: () => void): void {
  try {
    step()
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== code) throw error
  }
}

/** Errors that may disappear with time. A missing folder, or one of another user, will not. */
const TRANSIENT = new Set(['ENOSPC', 'EDQUOT', 'EMFILE', 'ENFILE', 'EIO', 'EAGAIN', 'EBUSY', 'ENOMEM'])

function attempt(failure: string, step: () => void): void {
  try {
    step()
  } catch (error) {
    if (isA(error, HoldfastError)) throw error
    const retryable = TRANSIENT.has(String(codeOf(error)))
    throw new StoreError(`${failure}: ${messageOf(error)}`, { cause: safeCause(error), retryable })
  }
}

/** The type of the file system if other machines may share it, from Linux's table of mounts. */
export function networkFileSystemOf(path: string, mountinfo: string): string | undefined {
  const type = mountOf(path, mountinfo)?.type
  if (type === undefined) return undefined
  // A FUSE file system counts as a network share unless it is known to be local.
  const isFuse = type === 'fuse' || type.startsWith('fuse.')
  return NETWORK_TYPES.has(type) || (isFuse && !LOCAL_FUSE.has(type)) ? type : undefined
}

export const isMountPoint = (path: string, mountinfo: string): boolean => mountOf(path, mountinfo)?.point === path

interface Mount {
  readonly id: string
  readonly parent: string
  readonly point: string
  readonly type: string
}

/** Follows the path as the kernel does, from mount to mount. A hidden mount is not found. */
function mountOf(path: string, mountinfo: string): Mount | undefined {
  const mounts = mountinfo
    .split('\n')
    .filter((line) => line.includes(' - '))
    .map(mountFrom)
  const ids = new Set(mounts.map(({ id }) => id))
  let current: Mount | undefined
  // The root mount is mounted on itself, or on a mount that the table does not show.
  const isNext = ({ id, parent }: Mount): boolean =>
    current === undefined ? id === parent || !ids.has(parent) : id !== parent && parent === current.id
  const onTop = (point: string): Mount | undefined => mounts.findLast((mount) => mount.point === point && isNext(mount))
  for (const point of prefixesOf(path)) {
    for (let next = onTop(point); next !== undefined; next = onTop(point)) current = next
  }
  return current
}

function mountFrom(line: string): Mount {
  const [before = '', after = ''] = line.split(' - ')
  const [id = '', parent = '', , , point = ''] = before.split(' ')
  const [type = ''] = after.split(' ')
  // Spaces in a path are written as \040.
  const octal = /\\(\d{3})/g
  return { id, parent, point: point.replace(octal, (_, code) => String.fromCharCode(Number.parseInt(code, 8))), type }
}

/** `/`, `/a`, `/a/b`. */
function prefixesOf(path: string): string[] {
  const parts = path.split('/').filter((part) => part !== '')
  return ['/', ...parts.map((_, index) => `/${parts.slice(0, index + 1).join('/')}`)]
}

const wordsIn = (text: string): ReadonlySet<string> => new Set(text.trim().split(/\s+/))

const NETWORK_TYPES = wordsIn(`
  9p acfs afs beegfs ceph cifs coda davfs drvfs fakeowner gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2
  orangefs prl_fs pvfs2 smb3 smbfs vboxsf virtiofs vmhgfs
`)

/** On a disk or in a folder of this machine. */
const LOCAL_FUSE = wordsIn(`
  fuse.cryfs fuse.encfs fuse.exfat fuse.exfat-fuse fuse.ext4 fuse.fuse-overlayfs fuse.fuse2fs
  fuse.gocryptfs fuse.lowntfs-3g fuse.ntfs fuse.ntfs-3g
`)

/** Throws for a file with several names: under another name it has another write-ahead log. */
export function refuseLinks(path: string, stats: Stats | BigIntStats | undefined): void {
  // The links of a folder are its subfolders.
  if (stats === undefined || stats.nlink <= 1 || !stats.isFile()) return
  throw new StoreError(
    `the lock file ${path} has ${stats.nlink} hard links: a process that opens it under another name does not see ` +
      'the same locks; remove the other links, or make them symbolic',
  )
}

export const identityOf = ({ dev, ino }: BigIntStats): string => `${dev}:${ino}`

/** What this connection has open is no longer what other processes lock. Opening the path again may help. */
export class MovedError extends StoreError {
  constructor(path: string, what = 'was removed or replaced while it was open') {
    super(`the file ${path} ${what}; close the database and open it again`)
  }
}
