import { readFileSync } from 'node:fs'
import { StoreError } from '../../core/errors.ts'

/**
 * Throws for a file that SQLite's own locks do not protect: a file on a network share, and a file that is a mount
 * point, whose write-ahead log would be beside another name of the same file. `realPath` has no links in it. Only Linux
 * lists its mounts.
 */
export function refuseMount(path: string, realPath: string): void {
  if (process.platform !== 'linux') return
  const mountinfo = readFileSync('/proc/self/mountinfo', 'utf8')
  const network = networkFileSystemOf(realPath, mountinfo)
  if (network !== undefined) {
    throw new StoreError(
      `the lock file ${path} is on a network share (${network}), where SQLite's locks do not exclude other machines; ` +
        'choose a local disk, or a store with a server',
      { retryable: false },
    )
  }
  if (isMountPoint(realPath, mountinfo)) {
    throw new StoreError(
      `the lock file ${path} is a mount point (as with "docker run -v file:file"), so other processes do not see ` +
        'the write-ahead log that SQLite keeps beside it; mount its folder instead',
      { retryable: false },
    )
  }
}

/**
 * The type of the file system of a path, if other machines may share it. Read from Linux's table of mounts.
 */
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

/**
 * Follows the path as the kernel does: from mount to mount, each on top of the one before. A mount that a later one
 * hides is not found.
 */
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

const NETWORK_TYPES = new Set([
  '9p',
  'acfs',
  'afs',
  'beegfs',
  'ceph',
  'cifs',
  'coda',
  'davfs',
  'drvfs',
  'fakeowner',
  'gfs2',
  'glusterfs',
  'gpfs',
  'lustre',
  'ncpfs',
  'nfs',
  'nfs4',
  'ocfs2',
  'orangefs',
  'prl_fs',
  'pvfs2',
  'smb3',
  'smbfs',
  'vboxsf',
  'virtiofs',
  'vmhgfs',
])

/** On a disk or in a folder of this machine. */
const LOCAL_FUSE = new Set([
  'fuse.cryfs',
  'fuse.encfs',
  'fuse.exfat',
  'fuse.exfat-fuse',
  'fuse.ext4',
  'fuse.fuse-overlayfs',
  'fuse.fuse2fs',
  'fuse.gocryptfs',
  'fuse.lowntfs-3g',
  'fuse.ntfs',
  'fuse.ntfs-3g',
])
