// @ts-check
// The cost of a lock in SQLite, compared with SQLite itself through the same library: node bench/sqlite.mjs
//
// Rounds of each kind take turns, so that other work on the machine slows all of them. Medians are compared.
import { fork } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { openDatabase } from '../dist/drivers/sqlite/client.js'
import { DistributedLock } from '../dist/index.js'
import { quantile } from './support/statistics.mjs'

const ROUNDS = 15
const PAIRS = 640
const AT_ONCE = 64
const HAND_OFFS = 1_000

const [role, url] = process.argv.slice(2)
if (role === 'hand-offs' && url !== undefined) await takeTurns(url)
else await main()

async function main() {
  const folder = mkdtempSync(join(tmpdir(), 'holdfast-bench-'))
  try {
    const version = (await openDatabase(join(folder, 'version.db'))).prepare('SELECT sqlite_version() AS version').all()
    console.log(`Node ${process.version}, SQLite ${/** @type {{ version: string }[]} */ (version)[0]?.version}`)
    await costs(folder)
    await handOffs(`sqlite:${join(folder, 'hand-offs.db')}`)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** @param {string} folder */
async function costs(folder) {
  const bare = await openDatabase(join(folder, 'bare.db'))
  bare.exec(
    'PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE t (name TEXT PRIMARY KEY, end INTEGER)',
  )
  const insert = bare.prepare('INSERT INTO t VALUES (?, ?)')
  const remove = bare.prepare('DELETE FROM t WHERE name = ?')
  /** @param {() => unknown} work */
  const transaction = (work) => {
    bare.exec('BEGIN IMMEDIATE')
    work()
    bare.exec('COMMIT')
  }
  const lock = new DistributedLock({ url: `sqlite:${join(folder, 'locks.db')}` })

  /** @type {Record<string, () => Promise<void> | void>} */
  const kinds = {
    'bare INSERT, DELETE': () => {
      for (let pair = 0; pair < PAIRS; pair += 1) {
        transaction(() => insert.run(`name ${pair}`, Date.now()))
        transaction(() => remove.run(`name ${pair}`))
      }
    },
    'acquire, release': async () => {
      for (let pair = 0; pair < PAIRS; pair += 1) await acquireAndRelease(lock, `name ${pair}`)
    },
    [`acquire, release, ${AT_ONCE} names at once`]: async () => {
      for (let pair = 0; pair < PAIRS; pair += AT_ONCE) {
        await Promise.all(Array.from({ length: AT_ONCE }, (_, each) => acquireAndRelease(lock, `name ${each}`)))
      }
    },
  }
  /** @type {Map<string, { wall: number[], cpu: number[] }>} in µs per pair */
  const took = new Map(Object.keys(kinds).map((kind) => [kind, { wall: [], cpu: [] }]))
  for (let round = -2; round < ROUNDS; round += 1) {
    for (const [kind, run] of Object.entries(kinds)) {
      const startedMs = performance.now()
      const before = process.cpuUsage()
      await run()
      const { user, system } = process.cpuUsage(before)
      if (round < 0) continue
      took.get(kind)?.wall.push(((performance.now() - startedMs) / PAIRS) * 1_000)
      took.get(kind)?.cpu.push((user + system) / PAIRS)
    }
  }
  await lock.close()
  bare.close()
  const base = took.get('bare INSERT, DELETE')
  console.log(
    `${''.padEnd(36)}${['µs per pair', 'ratio', 'CPU µs', 'ratio'].map((each) => each.padStart(11)).join('')}`,
  )
  for (const [kind, { wall, cpu }] of took) {
    const cells = [wall, cpu].flatMap((each, index) => {
      const median = quantile(each, 0.5)
      return [
        median.toFixed(0),
        `${(median / quantile((index === 0 ? base?.wall : base?.cpu) ?? [], 0.5)).toFixed(2)} ×`,
      ]
    })
    console.log(`${kind.padEnd(36)}${cells.map((each) => each.padStart(11)).join('')}`)
  }
}

/**
 * @param {DistributedLock} lock
 * @param {string} name
 */
async function acquireAndRelease(lock, name) {
  const result = await lock.acquire(name, { blocking: false })
  if (!result.acquired) throw new Error(result.error)
  await result.lock.release()
}

/** @typedef {{ token: number, acquiredMs: number, releasedMs: number }} Turn */

/**
 * Two processes hand one lock to each other. Measures the time from before the release to after the other's acquire, on
 * the machine's monotonic clock.
 *
 * @param {string} url
 */
async function handOffs(url) {
  const [a, b] = await Promise.all([startTurns(url), startTurns(url)])
  const turns = [...a.map((turn) => ({ ...turn, by: 'a' })), ...b.map((turn) => ({ ...turn, by: 'b' }))]
  turns.sort((x, y) => x.token - y.token)
  const took = turns.slice(1).flatMap((turn, index) => {
    const before = turns[index]
    return before === undefined || before.by === turn.by ? [] : [turn.acquiredMs - before.releasedMs]
  })
  const [p50, p99] = [quantile(took, 0.5), quantile(took, 0.99)]
  console.log(
    `hand-off between two processes: p50 ${p50.toFixed(2)} ms, p99 ${p99.toFixed(2)} ms (${took.length} of them)`,
  )
}

/**
 * @param {string} url
 * @returns {Promise<Turn[]>}
 */
function startTurns(url) {
  const child = fork(fileURLToPath(import.meta.url), ['hand-offs', url])
  return new Promise((resolve, reject) => {
    child.on('message', (turns) => resolve(/** @type {Turn[]} */ (turns)))
    child.on('error', reject)
  })
}

/** @param {string} url */
async function takeTurns(url) {
  const lock = new DistributedLock({ url })
  /** @type {Turn[]} */
  const turns = []
  for (let turn = 0; turn < HAND_OFFS / 2; turn += 1) {
    const lease = await lock.hold('ball', { blockingTimeoutSeconds: 60, heartbeat: false })
    const acquiredMs = now()
    // Long enough for the other process to wait again.
    await new Promise((resolve) => setTimeout(resolve, 5))
    turns.push({ token: lease.fencingToken, acquiredMs, releasedMs: now() })
    await lease.release()
  }
  await lock.close()
  process.send?.(turns)
  process.disconnect()
}

function now() {
  const [seconds, nanoseconds] = process.hrtime()
  return seconds * 1_000 + nanoseconds / 1_000_000
}
