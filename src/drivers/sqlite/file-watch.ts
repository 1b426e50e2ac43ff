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

/** Both answer how many lock names had to be looked at. */
export interface DatabaseWatcher {
  /** Somebody rang: a waiter's turn has come. */
  rung(): number
  /** Time to look whether anything has changed, whether or not somebody rang. Has to cost next to nothing if not. */
  poll(): number
}

/**
 * Tells a process that waits of what other processes did to a database: at once where the operating system tells of
 * changes to the bell, a file beside the database that a writer touches when a waiter's turn has come; and slowly in
 * any case, in case somebody did not ring. A look at many names is followed by a rest, so that a busy file does not
 * make those busy who merely wait.
 */
export function watchDatabase(path: string, clock: Clock, watcher: DatabaseWatcher): () => void {
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
    const looked = watcher[how]()
    restUntilMs = startedMs + looked * REST_PER_NAME_MS
    pollMs = looked > 0 ? POLL_MS : Math.min(pollMs * 1.2, SLOWEST_POLL_MS)
    if (how === 'poll') pollIn(bell === undefined ? pollMs : SAFETY_POLL_MS)
  }

  function pollIn(ms: number): void {
    timer?.cancel()
    if (!stopped) timer = clock.setTimer(() => look('poll'), ms)
  }

  /** Not every file system tells (and a user can have only so many watches): then the poll is all there is. */
  function fallBack(): void {
    bell?.close()
    bell = undefined
    pollIn(POLL_MS)
  }

  try {
    hangBell(path)
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

/** After the commit, so that a process that hears it sees what was committed. */
export function ringBell(path: string): void {
  try {
    withBell(bellOf(path), constants.O_WRONLY, (bell) => writeSync(bell, '.', 0))
  } catch {
    // No process waits, or the bell cannot be written: processes that wait poll, and what is committed must not fail
    // for it.
  }
}

/** A process that may write the database may ring. */
function hangBell(path: string): void {
  const database = statSync(path)
  try {
    withBell(bellOf(path), constants.O_RDWR | constants.O_CREAT | constants.O_EXCL, (bell) => share(bell, database))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
    // It may be root's, made before the database had another owner.
    withBell(bellOf(path), constants.O_RDONLY, (bell) => {
      if (process.geteuid?.() === 0) share(bell, database)
    })
  }
}

/**
 * Never through a link, and only a file that has no other name: in a folder that others may write, they could make a
 * ring write into another file. O_NONBLOCK, because a pipe in its place would block the process.
 */
function withBell(path: string, flags: number, work: (bell: number) => void): void {
  const bell = openSync(path, flags | constants.O_NOFOLLOW | constants.O_NONBLOCK, 0o600)
  try {
    const stats = fstatSync(bell)
    if (!stats.isFile() || stats.nlink !== 1) throw new Error(`${path} is not a file of its own`)
    work(bell)
  } finally {
    closeSync(bell)
  }
}

/**
 * As SQLite does with the files that it makes: made by root, or by another member of a group, the bell is the database
 * owner's all the same.
 */
function share(bell: number, { uid, gid, mode }: Stats): void {
  const made = fstatSync(bell)
  if (made.uid !== uid && process.geteuid?.() === 0) fchownSync(bell, uid, gid)
  else if (made.gid !== gid) attempt(() => fchownSync(bell, made.uid, gid))
  fchmodSync(bell, mode & 0o666)
}

/** For a process that is not in the database's group: whoever the mode leaves out has to poll. */
function attempt(step: () => void): void {
  try {
    step()
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EPERM') throw error
  }
}

const bellOf = (path: string): string => `${path}-bell`

/** Without a bell: quickly after something has happened, and slower the longer nothing does. */
const POLL_MS = 5
const SLOWEST_POLL_MS = 20
const SAFETY_POLL_MS = 200
/** About ten times what the look takes; not measured, because on a busy machine that would be anything. */
const REST_PER_NAME_MS = 0.3
