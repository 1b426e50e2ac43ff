import type { Driver, LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { holderText } from '../primitives/lock/result.ts'
import { durationText } from './duration.ts'
import { look, type Seen } from './store.ts'
import { printable, say } from './text.ts'
import { cutText } from './width.ts'

/** Says on standard error that a command waits, for whom, and since when. On a terminal, in one line that changes. */
export class WaitingReport {
  readonly #driver: Driver
  readonly #lockName: string
  #startedMs: number | undefined
  #timer: NodeJS.Timeout | undefined
  #hasLine = false

  constructor(driver: Driver, lockName: string) {
    this.#driver = driver
    this.#lockName = lockName
  }

  /** The claim was refused, and waits from now on. */
  begin(): void {
    this.#startedMs = performance.now()
    void this.#show()
    if (process.stderr.isTTY) this.#timer = setInterval(() => void this.#show(), EVERY_MS).unref()
  }

  /** The wait is over. What is shown must not end up in the output of the command. */
  end(): void {
    clearInterval(this.#timer)
    this.#startedMs = undefined
    if (this.#hasLine) process.stderr.write(CLEAR_LINE)
    this.#hasLine = false
  }

  async #show(): Promise<void> {
    const seen = await look(this.#driver, { lockName: this.#lockName }).catch(() => undefined)
    // Other lines report a store that does not answer. And the wait may have ended meanwhile.
    if (seen === undefined || this.#startedMs === undefined) return
    if (!process.stderr.isTTY) {
      say(this.#text(seen))
      return
    }
    const line = printable(`holdfast: ${this.#progress(seen, performance.now() - this.#startedMs)}`)
    process.stderr.write(CLEAR_LINE + cutText(line, (process.stderr.columns || 80) - 1))
    this.#hasLine = true
  }

  #text({ leases: [holder, ...others], waiters }: Seen): string {
    const held = holder === undefined ? '' : `, which is held by ${holderText(holder)}${moreText(others)}`
    return `waiting for "${this.#lockName}"${held}${queueText(waiters)}`
  }

  /** Shorter, because it has to fit a line. */
  #progress({ leases: [holder, ...others], waiters }: Seen, waitedMs: number): string {
    const { holderId, acquiredAtMs = 0 } = holder ?? {}
    const since = acquiredAtMs > 0 ? ` for ${durationText(Date.now() - acquiredAtMs)}` : ''
    const held = holderId === undefined ? '' : `, held by ${holderId}${since}${moreText(others)}`
    return `waiting ${durationText(waitedMs)} for "${this.#lockName}"${held}${queueText(waiters)}`
  }
}

const moreText = ({ length }: readonly LeaseRecord[]): string => (length > 0 ? ` and ${length} more` : '')

/** The claim that waits is one of them. */
const queueText = ({ length }: readonly WaiterRecord[]): string => (length > 1 ? `; ${length} wait` : '')

const EVERY_MS = 1_000
const CLEAR_LINE = '\r\u001b[K'
