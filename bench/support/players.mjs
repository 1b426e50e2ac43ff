// @ts-check
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

/** @import { ChildProcess } from 'node:child_process' */
/** @import { EnterOptions, Entry, Player, Stores } from '../types.d.ts' */

const WORKER = fileURLToPath(new URL('../worker.mjs', import.meta.url))
const DIST = fileURLToPath(new URL('../../dist', import.meta.url))
/** Calls that a peer never ends, such as a waiter that starves, must not end the run. */
const CALL_TIMEOUT_MS = 120_000

let calls = 0
let entered = 0

/**
 * Starts the processes of a contestant, and opens it in each.
 *
 * @param {Entry} entry
 * @param {EnterOptions & { stores: Stores }} options
 * @returns {Promise<Player>}
 */
export async function startPlayer(entry, { scenario, processes = 1, nodeOptions = [], stores }) {
  const children = Array.from({ length: processes }, () =>
    fork(WORKER, {
      // pg warns about a second query on a connection, which is how the floor of the advisory driver pipelines.
      execArgv: ['--no-deprecation', ...nodeOptions],
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    }),
  )
  const { module, driver, variant, dist = DIST } = entry
  // The processes of a contestant share its names. No other contestant has them, and no later one.
  entered += 1
  const prefix = `bench:${entered}`
  const stop = () => Promise.all(children.map(end))
  try {
    const open = { module, driver, variant, dist, stores, scenario, prefix }
    await Promise.all(children.map((child) => ask(child, { open })))
  } catch (error) {
    await stop()
    throw new Error(`cannot open ${entry.title} on ${driver}`, { cause: error })
  }
  return {
    entry,
    processes,
    call: (name, args, at = 0) => ask(/** @type {ChildProcess} */ (children[at]), { call: name, args }),
    callAll: (name, args) => Promise.all(children.map((child) => ask(child, { call: name, args }))),
    async [Symbol.asyncDispose]() {
      await stop()
    },
  }
}

/**
 * @template T
 * @param {ChildProcess} child
 * @param {object} message
 * @returns {Promise<T>}
 */
function ask(child, message) {
  calls += 1
  const id = calls
  return new Promise((resolve, reject) => {
    /** @param {() => void} then */
    const settle = (then) => {
      clearTimeout(timer)
      child.off('message', answered).off('exit', ended)
      then()
    }
    /** @param {unknown} answer */
    const answered = (answer) => {
      const { id: of, value, error } = /** @type {{ id: number, value: T, error?: string }} */ (answer)
      if (of !== id) return
      settle(() => (error === undefined ? resolve(value) : reject(new Error(error))))
    }
    const ended = () =>
      settle(() => reject(new Error(`the process of a contestant ended during ${JSON.stringify(message)}`)))
    const timer = setTimeout(
      () => settle(() => reject(new Error(`no answer to ${JSON.stringify(message)}`))),
      CALL_TIMEOUT_MS,
    )
    child.on('message', answered).on('exit', ended)
    child.send({ id, ...message })
  })
}

/** @param {ChildProcess} child */
async function end(child) {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exit = once(child, 'exit')
  child.kill('SIGKILL')
  await exit
}
