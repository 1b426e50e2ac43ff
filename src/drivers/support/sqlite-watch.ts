import { type FSWatcher, watch } from 'node:fs'
import type { Clock, Timer } from '../../core/clock.ts'

/**
 * Calls back when another process may have written to a database: at once where the operating system tells of changes to its
 * write-ahead log, and after a pause otherwise. The caller looks whether there was anything; a look must cost next to nothing.
 */
export function watchDatabase(path: string, clock: Clock, onChange: () => void): () => void {
  let timer: Timer | undefined
  let watcher: FSWatcher | undefined
  let stopped = false

  function look(): void {
    timer = clock.setTimer(look, watcher === undefined ? POLL_MS : SAFETY_POLL_MS)
    onChange()
  }

  /** Not every file system tells (and a user can have only so many watches): then the poll is all there is. */
  function fallBack(): void {
    watcher?.close()
    watcher = undefined
    if (stopped) return
    timer?.cancel()
    timer = clock.setTimer(look, POLL_MS)
  }

  try {
    watcher = watch(`${path}-wal`, { persistent: false }, onChange)
    watcher.on('error', fallBack)
  } catch {
    watcher = undefined
  }
  timer = clock.setTimer(look, watcher === undefined ? POLL_MS : SAFETY_POLL_MS)

  return () => {
    stopped = true
    timer?.cancel()
    watcher?.close()
  }
}

const POLL_MS = 5
const SAFETY_POLL_MS = 200
