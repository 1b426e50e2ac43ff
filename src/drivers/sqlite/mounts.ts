import { readFileSync } from 'node:fs'
import { StoreError } from '../../core/errors.ts'

/**
 * Throws for a file that SQLite's own locks do not protect: one on a network share, and one that is a mount point of
 * its own, whose write-ahead log would lie beside another name of the same file. `realPath` has no links in it. Only
 * Linux tells of its mounts.
 */
export function refuseMount(path: string, realPath: string): void {
  if (process.platform !== 'linux') return
  const mountinfo = readFileSync('/proc/self/mountinfo', 'utf8')
  const network = networkFileSystemOf(realPath, mountinfo)
  if (network !== undefined) {
    throw new StoreError(
      `the lock file ${path} would lie on a network share (${network}), where SQLite's locks do not exclude other machines; choose a local disk, or a store that is made for a network`,
      { retryable: false },
    )
  }
  if (isMountPoint(realPath, mountinfo)) {
    throw new StoreError(
      `the lock file ${path} is a mount point of its own (as with "docker run -v file:file"), so SQLite keeps its write-ahead log where others do not see it; mount the folder that it lies in`,
      { retryable: false },
    )
  }
}

/**
 * The type of the file system that a path lies on, if that is shared with other machines. From Linux's table of mounts.
 */
export function networkFileSystemOf(path: string, mountinfo: string): string | undefined {
  const type = mountOf(path, mountinfo)?.type
  if (type === undefined) return undefined
  // Whatever else is mounted by a program is a network's until it is known to be local.
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
 * Walks the path as the kernel does: from mount to mount, each on top of the one before. One that a later mount hides
 * is not met.
 */
function mountOf(path: string, mountinfo: string): Mount | undefined {
  const mounts = mountinfo
    .split('\n')
    .filter((line) => line.includes(' - '))
    .map(mountFrom)
  const ids = new Set(mounts.map(({ id }) => id))
  let current: Mount | undefined
  // The lowest of all is mounted on itself, or on one that the table does not show.
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
