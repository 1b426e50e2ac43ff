import type { Driver, LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { holderText } from '../primitives/lock/claims.ts'
import { inspectStore } from '../primitives/on-driver.ts'
import { durationText } from './duration.ts'
import type { Seen } from './store.ts'
import { cutText, printable, say } from './text.ts'

/**
 * Says on standard error that a command waits, for whom, and since when. On a terminal, in one line that changes.
 * Returns a function that ends it: what is shown must not end up in the output of the command.
 */
export function reportWaiting(driver: Driver, lockName: string): () => void {
  const startedMs = performance.now()
  const { isTTY } = process.stderr
  let isOver = false
  let hasLine = false
  const show = async (): Promise<void> => {
    const seen = await inspectStore(driver, { lockName }).catch(() => undefined)
    // Other lines report a store that does not answer. And the wait may have ended meanwhile.
    if (seen === undefined || isOver) return
    if (!isTTY) {
      say(waitingText(lockName, seen))
      return
    }
    const line = printable(`holdfast: ${progressText(lockName, seen, performance.now() - startedMs)}`)
    process.stderr.write(CLEAR_LINE + cutText(line, (process.stderr.columns || 80) - 1))
    hasLine = true
  }
  void show()
  const timer = isTTY ? setInterval(() => void show(), EVERY_MS).unref() : undefined
  return () => {
    isOver = true
    clearInterval(timer)
    if (hasLine) process.stderr.write(CLEAR_LINE)
    hasLine = false
  }
}

function waitingText(lockName: string, { leases: [holder, ...others], waiters }: Seen): string {
  const held = holder === undefined ? '' : `, which is held by ${holderText(holder)}${moreText(others)}`
  return `waiting for "${lockName}"${held}${queueText(waiters)}`
}

/** Shorter, because it has to fit a line. */
function progressText(lockName: string, { leases: [holder, ...others], waiters }: Seen, waitedMs: number): string {
  const { holderId, acquiredAtMs = 0 } = holder ?? {}
  const since = acquiredAtMs > 0 ? ` for ${durationText(Date.now() - acquiredAtMs)}` : ''
  const held = holderId === undefined ? '' : `, held by ${holderId}${since}${moreText(others)}`
  return `waiting ${durationText(waitedMs)} for "${lockName}"${held}${queueText(waiters)}`
}

const moreText = ({ length }: readonly LeaseRecord[]): string => (length > 0 ? ` and ${length} more` : '')

/** The claim that waits is one of them. */
const queueText = ({ length }: readonly WaiterRecord[]): string => (length > 1 ? `; ${length} wait` : '')

const EVERY_MS = 1_000
const CLEAR_LINE = '\r\u001b[K'
