import type { Driver } from '../core/driver.ts'
import { holderText } from '../primitives/lock/result.ts'
import { durationText } from './duration.ts'
import { look } from './store.ts'
import { printable, say } from './text.ts'

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
    const text = await this.#text().catch(() => undefined)
    // Other lines report a store that does not answer. And the wait may have ended meanwhile.
    if (text === undefined || this.#startedMs === undefined) return
    if (!process.stderr.isTTY) {
      say(text)
      return
    }
    const waited = durationText(performance.now() - this.#startedMs)
    const line = printable(`holdfast: ${waited}: ${text}`)
    process.stderr.write(CLEAR_LINE + line.slice(0, (process.stderr.columns ?? 80) - 1))
    this.#hasLine = true
  }

  async #text(): Promise<string> {
    const { leases, waiters } = await look(this.#driver, { lockName: this.#lockName })
    const [holder, ...others] = leases
    const more = others.length > 0 ? ` and ${others.length} more` : ''
    const held = holder === undefined ? '' : `, which is held by ${holderText(holder)}${more}`
    // This claim is one of them.
    const ahead = waiters.length > 1 ? `; ${waiters.length} wait` : ''
    return `waiting for "${this.#lockName}"${held}${ahead}`
  }
}

const EVERY_MS = 1_000
const CLEAR_LINE = '\r\u001b[K'
