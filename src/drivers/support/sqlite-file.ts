import { chmodSync, mkdirSync, readFileSync, statSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { StoreError } from '../../core/errors.ts'

/** Where the embedded default lies: one file for each user of a machine, in the place for state that is no configuration. */
export function defaultPath(env: NodeJS.ProcessEnv = process.env, platform = process.platform): string {
  return join(stateFolder(env, platform), 'holdfast', 'locks.db')
}

/** Makes the folder if need be, for this user alone, and refuses a file system on which SQLite's own locks do not hold. */
export function prepareFolder(path: string): void {
  const folder = dirname(resolve(path))
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 })
  } catch (error) {
    const said = error instanceof Error ? error.message : String(error)
    throw new StoreError(`the folder ${folder} for the lock file cannot be made: ${said}`, { cause: error })
  }
  const network =
    process.platform === 'linux' ? networkFileSystemOf(folder, readFileSync('/proc/self/mountinfo', 'utf8')) : undefined
  if (network !== undefined) {
    throw new StoreError(
      `the lock file ${path} would lie on a network share (${network}), where SQLite's locks do not exclude other machines; choose a local disk, or a store that is made for a network`,
    )
  }
}

/** Others must not be able to take or break this user's locks. */
export function protectFile(path: string): void {
  if (process.platform !== 'win32' && (statSync(path).mode & 0o077) !== 0) chmodSync(path, 0o600)
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
