// @ts-check
// What the processes of test/drivers/sqlite/processes.test.ts can do, on the built package. See test/harness/worker.ts.
import fs, { appendFileSync, closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'

if (process.env['HOLDFAST_TEST_NO_WATCH']) {
  fs.watch = () => {
    throw Object.assign(new Error('ENOSPC: System limit for number of file watchers reached'), { code: 'ENOSPC' })
  }
  syncBuiltinESMExports()
}
// Imported afterwards, so that it sees the change.
const { DistributedLock } = await import('holdfast')

/** @type {import('holdfast').DistributedLock} */
let lock
/** @type {Map<string, import('holdfast').Lease>} */
const leases = new Map()
/** @type {Promise<unknown>[]} */
const waiting = []

/** @param {import('holdfast').DistributedLockOptions} options */
export async function open(options) {
  lock = new DistributedLock(options)
}

/**
 * Adds one to the number in a file, `times` times: reads it, lets others run, and writes the next number. The file
 * keeps every number with the token of its writer, and refuses a smaller token. So a test can see whether one was lost.
 *
 * @param {{ file: string, slot: number, times: number, locked: boolean, timeoutSeconds: number }} task
 */
export async function increment({ file, slot, times, locked, timeoutSeconds }) {
  for (let done = 0; done < times; ) {
    const lease = locked ? await lock.hold('number', { timeoutSeconds, blockingTimeoutSeconds: 60 }) : undefined
    const { number, token } = readLast(file)
    await nextTurn()
    // The machine stalled for longer than the lease. Nothing was added, so it tries again.
    if (lease === undefined || lease.held) {
      const ownToken = lease?.fencingToken ?? 0
      refuseStale(ownToken, token)
      appendFileSync(file, `${number + 1} ${ownToken} ${slot}\n`)
      done += 1
    }
    await lease?.release()
  }
}

/**
 * A late write by a process that does not check whether it still holds the lock. Only the file can refuse it.
 *
 * @param {string} file
 * @param {string} name
 */
export async function guardedWrite(file, name) {
  const { number, token } = readLast(file)
  const ownToken = leases.get(name)?.fencingToken ?? 0
  refuseStale(ownToken, token)
  appendFileSync(file, `${number + 1} ${ownToken} 0\n`)
}

/**
 * Holds a lock until `release`.
 *
 * @param {string} name
 * @param {import('holdfast').LockOptions} [options]
 */
export async function hold(name, options) {
  const lease = await lock.hold(name, { blockingTimeoutSeconds: 60, heartbeat: false, ...options })
  leases.set(name, lease)
  return lease.fencingToken
}

/** @param {string} name */
export async function holdBriefly(name) {
  const lease = await lock.hold(name, { blockingTimeoutSeconds: 60 })
  await lease.release()
  return lease.fencingToken
}

/** @param {string} name */
export const isHeld = (name) => leases.get(name)?.held

/** @param {string} name */
export const release = (name) => leases.get(name)?.release()

/**
 * Starts waiters, one after the other. Each releases the lock as soon as it has it. The file records who got it, with
 * which token.
 *
 * @param {{ name: string, waiters: number, file: string }} task
 */
export async function queue({ name, waiters, file }) {
  if (waiting.length === 0) {
    lock.on('acquired', ({ claimId, fencingToken }) => appendFileSync(file, `${claimId} ${fencingToken}\n`))
  }
  for (let started = 0; started < waiters; started += 1) {
    const turn = lock.hold(name, { timeoutSeconds: 30, blockingTimeoutSeconds: 60 })
    waiting.push(turn.then((lease) => lease.release()))
    await nextTurn()
  }
}

export async function served() {
  await Promise.all(waiting)
}

/**
 * Keeps one lease, and acquires and releases free locks without a pause.
 *
 * @param {{ ms: number, timeoutSeconds: number }} task
 */
export async function crowd({ ms, timeoutSeconds }) {
  const found = { pairs: 0, failed: 0, lost: 0 }
  const kept = await lock.hold(`kept ${process.pid}`, { timeoutSeconds, heartbeat: true })
  kept.signal.addEventListener('abort', () => {
    found.lost += 1
  })
  for (const endMs = performance.now() + ms; performance.now() < endMs; ) {
    try {
      const lease = await lock.hold(`free ${process.pid}`)
      await lease.release()
      found.pairs += 1
    } catch {
      found.failed += 1
    }
  }
  const { lost } = found
  await kept.release()
  return { ...found, lost }
}

/**
 * How much of a core this process uses while it is idle, in percent.
 *
 * @param {number} ms
 */
export async function idleCpuPercent(ms) {
  const before = process.cpuUsage()
  const startedMs = performance.now()
  await sleep(ms)
  const { user, system } = process.cpuUsage(before)
  return ((user + system) / 1_000 / (performance.now() - startedMs)) * 100
}

/**
 * @param {number} ownToken
 * @param {number} token
 */
function refuseStale(ownToken, token) {
  if (ownToken < token) throw new Error(`the file has token ${token} and refuses ${ownToken}`)
}

/** @param {string} file */
function readLast(file) {
  const descriptor = openSync(file, 'a+')
  try {
    const { size } = fstatSync(descriptor)
    const bytes = Buffer.alloc(Math.min(size, 100))
    readSync(descriptor, bytes, 0, bytes.length, size - bytes.length)
    const [number = 0, token = 0] = (bytes.toString().trimEnd().split('\n').at(-1) ?? '').split(' ').map(Number)
    return { number, token }
  } finally {
    closeSync(descriptor)
  }
}
