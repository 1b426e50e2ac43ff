import { createHash } from 'node:crypto'
import {
  closeSync,
  constants,
  fstatSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  unlinkSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { StoreError } from '../../core/errors.ts'
import { attempt } from '../../core/foreign-errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { identityOf, MovedError } from './file.ts'

/**
 * Two copies of SQLite in one process, such as those of `node:sqlite` and better-sqlite3, do not exclude each other:
 * POSIX locks belong to the process. And when one of them closes the file, the system drops the locks of both.
 *
 * A copy opens the index of the write-ahead log once, for all of its connections and threads. So a second descriptor of
 * the index is a second copy, also one that the driver knows nothing of.
 */
export class SecondCopyError extends StoreError {
  constructor(path: string) {
    super(
      `the lock file ${path} is open in this process through two copies of SQLite, and file locks do not exclude ` +
        'within a process; use one library for it: pass the database that you have opened to sqliteDriver',
      { retryable: false },
    )
  }
}

/**
 * Returns a function that throws if the file is open through another copy, or if the locks of this one were dropped.
 * Throws at once if this process does not have one of the files open. It reads the list of open files at most once a
 * second. With many sockets it takes half a percent of the time, and is read every ten seconds at least.
 */
export function watchDescriptors(
  path: string,
  { files, index, clock }: { files: readonly FileName[]; index: FileName; clock: Clock },
): () => void {
  let dueMs = Number.NEGATIVE_INFINITY
  return () => {
    const startedMs = clock.now().monotonicMs
    if (startedMs < dueMs) return
    const open = openDescriptors()
    if (open !== undefined) {
      const removed = files.find(({ identity }) => !open.has(identity))
      if (removed !== undefined) {
        throw new StoreError(
          `the file ${removed.path} was removed or replaced while it was open, and this process still works on the ` +
            'old one; restart the process',
        )
      }
      const [own = -1, ...others] = open.get(index.identity) ?? []
      if (others.length > 0) throw new SecondCopyError(path)
      if (locksAreLost(own))
        throw new MovedError(path, 'is no longer locked: another part of this process has closed it')
    }
    const tookMs = clock.now().monotonicMs - startedMs
    dueMs = startedMs + Math.min(Math.max(LOOK_EVERY_MS, tookMs * 200), LOOK_AT_LEAST_EVERY_MS)
  }
}

interface FileName {
  readonly path: string
  readonly identity: string
}

const LOOK_EVERY_MS = 1_000
const LOOK_AT_LEAST_EVERY_MS = 10_000

/** The descriptors of this process by file. Undefined where the system does not list them. */
function openDescriptors(): ReadonlyMap<string, readonly number[]> | undefined {
  const found = new Map<string, number[]>()
  for (const descriptor of descriptorNumbers()) {
    // It may be that of the list itself, or another thread may have closed it.
    const stats = attempt(() => fstatSync(descriptor, { bigint: true }))
    if (stats === undefined) continue
    const same = found.get(identityOf(stats))
    if (same === undefined) found.set(identityOf(stats), [descriptor])
    else same.push(descriptor)
  }
  return found.size === 0 ? undefined : found
}

function descriptorNumbers(): number[] {
  const folder = { linux: '/proc/self/fd', darwin: '/dev/fd' }[process.platform as string]
  return folder === undefined ? [] : (attempt(() => readdirSync(folder)) ?? []).map(Number)
}

/**
 * While SQLite has an index open, it holds a lock on it. Only Linux shows it. A system that has never shown one, such
 * as a sandbox, cannot tell.
 */
function locksAreLost(descriptor: number): boolean {
  if (process.platform !== 'linux') return false
  const isLocked = attempt(() => readFileSync(`/proc/self/fdinfo/${descriptor}`, 'utf8'))?.includes('lock:') ?? false
  showsLocks ||= isLocked
  return showsLocks && !isLocked
}

let showsLocks = false

/**
 * Throws if a driver in this process, in any thread, has the file open through another copy. Call it before the file is
 * opened: even a connection that is closed at once would drop the locks of the other copy.
 */
export async function refuseSecondCopy(path: string, ownCopy: () => Promise<string>): Promise<void> {
  const stats = statSync(path, { throwIfNoEntry: false, bigint: true })
  const index = statSync(`${path}-shm`, { throwIfNoEntry: false, bigint: true })
  if (process.platform !== 'linux' || stats === undefined || index === undefined) return
  const marks = descriptorNumbers().flatMap((descriptor) => {
    const target = attempt(() => readlinkSync(`/proc/self/fd/${descriptor}`)) ?? ''
    const [, identity, copy = ''] = MARK.exec(target) ?? []
    return identity === identityOf(stats) ? [copy] : []
  })
  if (marks.length === 0) return
  const own = await ownCopy()
  // A database that its owner has closed may have left its mark, but not the index open.
  if (marks.some((copy) => copy !== own) && openDescriptors()?.has(identityOf(index))) throw new SecondCopyError(path)
}

const MARK = /holdfast-copy\.([0-9]+:[0-9]+)\.([0-9a-f]+) \(deleted\)$/

/** Tells one build of SQLite from another. */
export function copyOf(rows: (sql: string) => readonly Record<string, unknown>[]): string {
  const build = rows('SELECT sqlite_source_id() AS said UNION ALL SELECT compile_options FROM pragma_compile_options')
  const text = JSON.stringify(build.map(({ said }) => said))
  return createHash('sha256').update(text).digest('hex').slice(0, 16)
}

/**
 * Marks that this process has the file open through this copy. The mark is an open descriptor of a file that has
 * already been removed: all threads of the process see its name, and it ends with the process. Returns a function that
 * removes it.
 */
export function markCopy(path: string, copy: string): () => void {
  if (process.platform !== 'linux') return () => {}
  const identity = identityOf(statSync(path, { bigint: true }))
  const name = join(dirname(path), `holdfast-copy.${identity}.${copy}`)
  const mark = attempt(() => openSync(name, constants.O_WRONLY | constants.O_CREAT | constants.O_NOFOLLOW, 0o600))
  if (mark === undefined) return () => {}
  attempt(() => unlinkSync(name))
  return () => attempt(() => closeSync(mark))
}
