import {
  closeSync,
  constants,
  type FSWatcher,
  fchmodSync,
  fchownSync,
  fstatSync,
  openSync,
  type Stats,
  statSync,
  watch,
  writeSync,
} from 'node:fs'
import type { Clock, Timer } from '../../core/time/clock.ts'
import { ignoring } from './file.ts'

/**
 * Notifies a waiting process of changes that other processes made. A writer rings the bell, a file beside the database,
 * when a waiter's turn has come. Where the operating system reports changes of files, the notification comes at once. A
 * slow poll covers a ring that was missed or never made.
 *
 * A check of many names is followed by a rest, so that a busy database does not keep waiting processes busy.
 *
 * @param check returns how many lock names had to be checked. A `poll` must cost almost nothing if nothing has changed
 */
export function watchDatabase(path: string, clock: Clock, check: (how: 'rung' | 'poll') => number): () => void {
  let timer: Timer | undefined
  let bell: FSWatcher | undefined
  let restUntilMs = 0
  let pollMs = POLL_MS
  let stopped = false

  const nowMs = () => clock.now().monotonicMs

  function look(how: 'rung' | 'poll'): void {
    const startedMs = nowMs()
    if (startedMs < restUntilMs) {
      pollIn(restUntilMs - startedMs)
      return
    }
    const looked = check(how)
    restUntilMs = startedMs + looked * REST_PER_NAME_MS
    pollMs = looked > 0 ? POLL_MS : Math.min(pollMs * 1.2, MAX_POLL_MS)
    if (how === 'poll') pollIn(bell === undefined ? pollMs : SAFETY_POLL_MS)
  }

  function pollIn(ms: number): void {
    timer?.cancel()
    if (!stopped) timer = clock.setTimer(() => look('poll'), ms)
  }

  /** Not every file system reports changes, and the number of watches is limited. Then only the poll remains. */
  function fallBack(): void {
    bell?.close()
    bell = undefined
    pollIn(POLL_MS)
  }

  try {
    createBell(path)
    bell = watch(bellOf(path), { persistent: false }, () => look('rung'))
    bell.on('error', fallBack)
    pollIn(SAFETY_POLL_MS)
  } catch {
    fallBack()
  }

  return () => {
    stopped = true
    timer?.cancel()
    bell?.close()
  }
}

/** Call it after the commit, so that a process that is notified sees what was committed. */
export function ringBell(path: string): void {
  try {
    withBell(bellOf(path), constants.O_WRONLY, (bell) => writeSync(bell, '.', 0))
  } catch {
    // No process waits, or the bell cannot be written. Waiting processes poll, and a committed call must not fail.
  }
}

/** Creates the bell. Every process that may write to the database may ring it. */
function createBell(path: string): void {
  const database = statSync(path)
  try {
    withBell(bellOf(path), constants.O_RDWR | constants.O_CREAT | constants.O_EXCL, (bell) => share(bell, database))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
    // It may belong to root, if it was created before the database got another owner.
    withBell(bellOf(path), constants.O_RDONLY, (bell) => {
      if (process.geteuid?.() === 0) share(bell, database)
    })
  }
}

/**
 * Never follows a link, and opens only a file with one name: in a folder that others may write to, they could direct
 * the write into another file. O_NONBLOCK, because a pipe in its place would block the process.
 */
function withBell(path: string, flags: number, work: (bell: number) => void): void {
  const bell = openSync(path, flags | constants.O_NOFOLLOW | constants.O_NONBLOCK, 0o600)
  try {
    const stats = fstatSync(bell)
    if (!stats.isFile() || stats.nlink !== 1) throw new Error(`${path} is not a plain file with one name`)
    work(bell)
  } finally {
    closeSync(bell)
  }
}

/** As SQLite does: a bell that root or a group member creates belongs to the owner of the database. */
function share(bell: number, { uid, gid, mode }: Stats): void {
  const made = fstatSync(bell)
  if (made.uid !== uid && process.geteuid?.() === 0) fchownSync(bell, uid, gid)
  // A process may not be in the database's group. A user whom the mode excludes has to poll.
  else if (made.gid !== gid) ignoring('EPERM', () => fchownSync(bell, made.uid, gid))
  fchmodSync(bell, mode & 0o666)
}

const bellOf = (path: string): string => `${path}-bell`

/** Without a bell: fast after a change, and slower the longer nothing changes. */
const POLL_MS = 5
const MAX_POLL_MS = 20
const SAFETY_POLL_MS = 200
/** About ten times the duration of a check. A constant, because a measurement on a busy machine could be anything. */
const REST_PER_NAME_MS = 0.3
