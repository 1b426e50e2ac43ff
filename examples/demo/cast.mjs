// @ts-check
// Starts the demo's processes, sends them orders, records their events, and ends them by their ids.
import { fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

/** @typedef {import('./tally.mjs').DemoEvent} DemoEvent */

/** How long to wait for an event that should happen in a few seconds. */
const PATIENCE_MS = 20_000

/**
 * @param {object} options
 * @param {readonly string[]} options.names
 * @param {string} options.folder
 * @param {DemoEvent[]} options.events
 * @param {(event: DemoEvent) => void} options.onEvent
 */
export function startCast({ names, folder, events, onEvent }) {
  const file = fileURLToPath(new URL('worker.mjs', import.meta.url))
  const processes = new Map(
    names.map((name) => [
      name,
      fork(file, { env: { ...process.env, DEMO_NAME: name, DEMO_FOLDER: folder }, execArgv: [] }),
    ]),
  )
  /** @type {Set<() => void>} */
  const waiting = new Set()

  /** @param {DemoEvent} event */
  function record(event) {
    events.push(event)
    onEvent(event)
    for (const look of [...waiting]) look()
  }

  for (const [name, child] of processes) {
    record({ at: now(), who: name, what: 'starts' })
    child.on('message', (event) => record(/** @type {DemoEvent} */ (event)))
    child.on('exit', () => record({ at: now(), who: name, what: 'is gone' }))
    // A message to a process that has just ended fails. The exit is recorded anyway.
    child.on('error', () => {})
  }

  /** @param {string} name */
  const childOf = (name) => {
    const child = processes.get(name)
    if (child?.pid === undefined) throw new Error(`no process ${name}`)
    return { child, pid: child.pid }
  }

  /**
   * Resolves with the first event that fits, which may be a past one. Rejects if a process fails or ends unexpectedly.
   *
   * @param {string} description
   * @param {(event: DemoEvent) => boolean} fits
   * @returns {Promise<DemoEvent>}
   */
  function until(description, fits) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => finish(new Error(`timed out: ${description}`)), PATIENCE_MS)
      function look() {
        const failed = events.find(({ what }) => what === 'fails')
        const gone = events.find(
          ({ who, what }) =>
            what === 'is gone' && !events.some((each) => each.who === who && each.what === 'is to end'),
        )
        if (failed !== undefined) return finish(new Error(`${failed.who} failed: ${failed.error}`))
        if (gone !== undefined) return finish(new Error(`${gone.who} ended unexpectedly`))
        const found = events.find(fits)
        if (found !== undefined) finish(found)
      }
      /** @param {DemoEvent | Error} outcome */
      function finish(outcome) {
        clearTimeout(timer)
        waiting.delete(look)
        if (outcome instanceof Error) reject(outcome)
        else resolve(outcome)
      }
      waiting.add(look)
      look()
    })
  }

  return {
    record,
    until,

    /** @param {string} name */
    pidOf: (name) => childOf(name).pid,

    /**
     * @param {string} name
     * @param {string} order
     * @param {object} [more]
     */
    tell(name, order, more) {
      childOf(name).child.send({ order, ...more })
    },

    /**
     * @param {string} name
     * @param {number} ttlMs
     */
    async kill(name, ttlMs) {
      const { child, pid } = childOf(name)
      record({ at: now(), who: name, what: 'is to end' })
      const gone = once(child, 'exit')
      process.kill(pid, 'SIGKILL')
      await gone
      const event = { at: now(), who: name, what: 'is killed', ttlMs, pid }
      record(event)
      return event
    },

    /**
     * @param {string} name
     * @param {number} ttlMs
     */
    pause(name, ttlMs) {
      const { pid } = childOf(name)
      // A stopped process does not notice that the demo was killed. This shell does, when its pipe is closed.
      const script = 'cat; kill -CONT "$1"'
      spawn('sh', ['-c', script, 'sh', String(pid)], { stdio: ['pipe', 'ignore', 'ignore'] }).unref()
      process.kill(pid, 'SIGSTOP')
      const event = { at: now(), who: name, what: 'is paused', ttlMs }
      record(event)
      return event
    },

    /** @param {string} name */
    resume(name) {
      const event = { at: now(), who: name, what: 'is resumed' }
      record(event)
      process.kill(childOf(name).pid, 'SIGCONT')
      return event
    },

    /** Ends all processes at once. Synchronous, so that the demo can call it while it exits. */
    end() {
      for (const [name, child] of processes) {
        if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) continue
        record({ at: now(), who: name, what: 'is to end' })
        child.kill('SIGKILL')
      }
    },
  }
}

/** The monotonic clock, which all processes of a machine share, in milliseconds. */
export function now() {
  return Number(process.hrtime.bigint()) / 1e6
}
