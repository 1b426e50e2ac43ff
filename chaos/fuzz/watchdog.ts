import { Worker } from 'node:worker_threads'

/**
 * Ends the process with a message when its event loop has been blocked for too long. An endless loop cannot be reported
 * by the thread that is in it.
 */
export class Watchdog implements Disposable {
  readonly #worker = new Worker(PROGRAM, { eval: true })
  readonly #timer: NodeJS.Timeout

  /** `running` names the cases that run. */
  constructor(running: () => string) {
    const tell = (): void => this.#worker.postMessage(running())
    this.#timer = setInterval(tell, 500)
    this.#worker.unref()
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer)
    void this.#worker.terminate()
  }
}

const MAX_BLOCKED_MS = 60_000

/** It writes with `writeSync`: the output of a worker goes through the thread that is blocked. */
const PROGRAM = `
  const { parentPort } = require('node:worker_threads')
  const { writeSync } = require('node:fs')
  let running = ''
  let heardAt = Date.now()
  parentPort.on('message', (text) => { running = text; heardAt = Date.now() })
  setInterval(() => {
    if (Date.now() - heardAt < ${MAX_BLOCKED_MS}) return
    writeSync(1, '\\nFINDING: the event loop was blocked for ${MAX_BLOCKED_MS / 1_000} s by one of ' + running + '\\n')
    process.kill(process.pid, 'SIGKILL')
  }, 1000)
`
