// @ts-check
// The cost of many waiters on one lock in SQLite: node bench/sqlite-waiters.mjs [waiters] [processes]
//
// One process holds the lock, with a lease of 5 s, and also has waiters. The other processes only wait. Then the lock
// goes from waiter to waiter. Prints whether the holder kept its lease, the longest stall of an event loop, and the
// grants per second.
import { fork } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { DistributedLock } from '../dist/index.js'
import { watchLoop } from './support/event-loop.mjs'

const HOLD_MS = 12_000
const SERVE_MS = 8_000

const [first, second, third] = process.argv.slice(2)
if (first === 'wait') await takePart(/** @type {string} */ (second), Number(third), false)
else await main(Number(first ?? 4_000), Number(second ?? 4))

/**
 * @param {number} waiters
 * @param {number} processes
 */
async function main(waiters, processes) {
  const folder = mkdtempSync(join(tmpdir(), 'holdfast-bench-'))
  const url = `sqlite:${join(folder, 'locks.db')}`
  const share = Math.ceil(waiters / processes)
  console.log(`Node ${process.version}, ${share * processes} waiters in ${processes} processes`)
  const others = Array.from({ length: processes - 1 }, () =>
    fork(fileURLToPath(import.meta.url), ['wait', url, `${share}`]),
  )
  try {
    const ended = others.map((child) => new Promise((resolve) => child.once('exit', resolve)))
    await takePart(url, share, true)
    await Promise.all(ended)
  } finally {
    for (const child of others) child.kill()
    rmSync(folder, { recursive: true, force: true })
  }
}

/**
 * @param {string} url
 * @param {number} waiters
 * @param {boolean} holds
 */
async function takePart(url, waiters, holds) {
  const lock = new DistributedLock({ url })
  const loop = watchLoop()
  const lease = holds ? await lock.hold('name', { timeoutSeconds: 5 }) : undefined
  if (!holds) while ((await lock.acquire('name')).acquired) await lock.release('name')
  let grants = 0
  let stopped = false
  const waiting = Array.from({ length: waiters }, async () => {
    while (!stopped) {
      const turn = await lock.hold('name', { timeoutSeconds: 5, blockingTimeoutSeconds: 600 })
      grants += 1
      await turn.release()
    }
  })
  for (const each of waiting) each.catch(() => undefined)
  await sleep(HOLD_MS)
  const stall = loop.longest()
  const kept = lease?.held
  await lease?.release()
  await sleep(SERVE_MS)
  stopped = true
  const parts = [
    kept === undefined ? undefined : kept ? 'the holder kept its lease' : 'the holder LOST its lease',
    `longest stall while all wait ${stall.toFixed(0)} ms, while they are served ${loop.longest().toFixed(0)} ms`,
    `${(grants / (SERVE_MS / 1_000)).toFixed(0)} grants per second`,
  ]
  console.log(parts.filter((part) => part !== undefined).join('; '))
  await Promise.race([lock.close(), sleep(5_000)])
  if (!holds) process.exit()
}
