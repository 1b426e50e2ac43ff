import { closeSync, existsSync, mkdirSync, openSync, readFileSync, realpathSync } from 'node:fs'
import { homedir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { StoreError } from '../../core/errors.ts'

/** Where the embedded default lies: one file for each user of a machine, in the place for state that is no configuration. */
export function defaultPath(env: NodeJS.ProcessEnv = process.env, platform = process.platform): string {
  return join(stateFolder(env, platform), 'holdfast', 'locks.db')
}

/** Makes the folder and the file if need be, for this user alone. One that is there keeps its permissions: a team may share it. */
export function prepareFile(path: string): void {
  const folder = dirname(path)
  attempt(`the folder ${folder} for the lock file cannot be made`, () => makeFolder(folder))
  refuseNetworkShare(path)
  // SQLite makes the files beside it with the same permissions.
  attempt(`the lock file ${path} cannot be made`, () => unlessThere(() => closeSync(openSync(path, 'wx', 0o600))))
}

/** Throws for a file system on which SQLite's own locks do not hold. */
export function refuseNetworkShare(path: string): void {
  if (process.platform !== 'linux') return
  const network = networkFileSystemOf(dirname(realPathOf(path)), readFileSync('/proc/self/mountinfo', 'utf8'))
  if (network !== undefined) {
    throw new StoreError(
      `the lock file ${path} would lie on a network share (${network}), where SQLite's locks do not exclude other machines; choose a local disk, or a store that is made for a network`,
    )
  }
}

/** The type of the file system that a folder lies on, if that is a network's. From Linux's table of mounts. */
export function networkFileSystemOf(folder: string, mountinfo: string): string | undefined {
  const mounts = mountinfo
    .split('\n')
    .filter((line) => line.includes(' - '))
    .map((line) => {
      const [before = '', after = ''] = line.split(' - ')
      // Spaces in a path are written as \040.
      const point = (before.split(' ')[4] ?? '').replace(/\\(\d{3})/g, (_, code: string) =>
        String.fromCharCode(Number.parseInt(code, 8)),
      )
      return { point, type: after.split(' ')[0] ?? '' }
    })
    .filter(({ point }) => folder === point || folder.startsWith(point.endsWith('/') ? point : `${point}/`))
  // The last of the longest: a later mount on the same place hides the earlier one.
  const nearest = mounts.reduce<{ point: string; type: string } | undefined>(
    (best, mount) => (best === undefined || mount.point.length >= best.point.length ? mount : best),
    undefined,
  )
  return nearest !== undefined && NETWORK_TYPES.has(nearest.type) ? nearest.type : undefined
}

const NETWORK_TYPES = new Set([
  'nfs',
  'nfs4',
  'cifs',
  'smb3',
  'smbfs',
  'afs',
  'ceph',
  'fuse.ceph',
  'glusterfs',
  'fuse.glusterfs',
  'lustre',
  'gfs2',
  'ocfs2',
  'fuse.sshfs',
  'fuse.s3fs',
  'fuse.rclone',
  'beegfs',
  'davfs',
  'fuse.davfs2',
])

function stateFolder(env: NodeJS.ProcessEnv, platform: NodeJS.Platform): string {
  if (platform === 'win32') return env['LOCALAPPDATA'] || join(homedir(), 'AppData', 'Local')
  if (env['XDG_STATE_HOME']) return env['XDG_STATE_HOME']
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

function attempt(failure: string, step: () => void): void {
  try {
    step()
  } catch (error) {
    const said = error instanceof Error ? error.message : String(error)
    throw new StoreError(`${failure}: ${said}`, { cause: error })
  }
}
