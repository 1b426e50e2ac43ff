import { chmodSync, closeSync, type FSWatcher, openSync, statSync, watch, writeFileSync } from 'node:fs'
import type { Clock, Timer } from '../../core/clock.ts'

/** Both answer how many lock names had to be looked at. */
export interface DatabaseWatcher {
  /** Somebody rang: a waiter's turn has come. */
  rung(): number
  /** Time to look whether anything has changed, whether or not somebody rang. Has to cost next to nothing if not. */
  poll(): number
}

/**
 * Tells a process that waits of what other processes did to a database: at once where the operating system tells of changes to the
 * bell, a file beside the database that a writer touches when a waiter's turn has come; and slowly in any case, in case
 * somebody did not ring. A look at many names is followed by a rest, so that a busy file does not make those busy who merely wait.
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

/** After the commit, so that whoever hears it sees what was committed. */
export function ringBell(path: string): void {
  try {
    writeFileSync(bellOf(path), '.', { flag: 'r+' })
  } catch {
    // Nobody has hung one up, or it cannot be written: those who wait poll, and it is not worth failing what is already done.
  }
}

/** Whoever may write the database may ring. */
function hangBell(path: string): void {
  const { mode } = statSync(path)
  try {
    closeSync(openSync(bellOf(path), 'wx', 0o600))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return
    throw error
  }
  chmodSync(bellOf(path), mode & 0o666)
}

const bellOf = (path: string): string => `${path}-bell`

/** Without a bell: quickly after something has happened, and slower the longer nothing does. */
const POLL_MS = 5
const SLOWEST_POLL_MS = 20
const SAFETY_POLL_MS = 200
/** About ten times what the look takes; not measured, because on a busy machine that would be anything. */
const REST_PER_NAME_MS = 0.3
