// @ts-check
// The cost of many waiters on one lock in PostgreSQL:
//   node bench/postgres-waiters.mjs postgres://postgres@127.0.0.1:5432/postgres [waiters] [processes] [dist]
// dist is the built package to measure. By default it is the dist of this repository.
//
// One process holds the lock and an unrelated lock, each with a lease of 5 s, and also has waiters. The other processes
// only wait. Then the lock goes from waiter to waiter. Prints whether both leases were kept, the longest stall of an
// event loop, and the grants per second.
import { fork } from 'node:child_process'
import { loadavg } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { watchLoop } from './support/event-loop.mjs'

const HOLD_MS = 15_000
const SERVE_MS = 10_000

const [url, waiters = '6000', processes = '6', dist = fileURLToPath(new URL('../dist', import.meta.url)), role] =
  process.argv.slice(2)
if (url === undefined) throw new Error('node bench/postgres-waiters.mjs postgres://user@host:port/database')
const { DistributedLock } = await import(pathToFileURL(`${dist}/index.js`).href)

if (role === 'wait') await takePart(false)
else await main()

async function main() {
  const load = loadavg().map((each) => each.toFixed(1))
  console.log(`Node ${process.version}, ${waiters} waiters in ${processes} processes, load ${load.join(' ')}`)
  const script = fileURLToPath(import.meta.url)
  const args = [/** @type {string} */ (url), waiters, processes, dist, 'wait']
  const others = Array.from({ length: Number(processes) - 1 }, () => fork(script, args))
  try {
    const results = others.map((child) => new Promise((resolve) => child.once('message', resolve)))
    const all = /** @type {Awaited<ReturnType<typeof takePart>>[]} */ ([
      await takePart(true),
      ...(await Promise.all(results)),
    ])
    const most = (/** @type {'stallMs' | 'servingStallMs'} */ what) =>
      Math.max(...all.map((each) => each[what])).toFixed(0)
    const sum = (/** @type {'grants' | 'failed'} */ what) => all.reduce((total, each) => total + each[what], 0)
    console.log(`after ${HOLD_MS / 1_000} s: ${all[0]?.leases}`)
    const serving = `${most('servingStallMs')} ms while they are served`
    console.log(`longest stall of an event loop: ${most('stallMs')} ms while all wait, ${serving}`)
    console.log(`${(sum('grants') / (SERVE_MS / 1_000)).toFixed(1)} grants per second, ${sum('failed')} failed`)
  } finally {
    for (const child of others) child.kill()
  }
}

/** @param {boolean} holds */
async function takePart(holds) {
  const lock = new DistributedLock({ url })
  const loop = watchLoop()
  const lease = holds ? await lock.hold('many-waiters', { timeoutSeconds: 5 }) : undefined
  const unrelated = holds ? await lock.hold('no-waiters', { timeoutSeconds: 5 }) : undefined
  if (!holds) while ((await lock.acquire('many-waiters')).acquired) await lock.release('many-waiters')
  let grants = 0
  let failed = 0
  let stopped = false
  const waiting = Array.from({ length: Math.ceil(Number(waiters) / Number(processes)) }, async () => {
    while (!stopped) {
      try {
        const turn = await lock.hold('many-waiters', { timeoutSeconds: 5, blockingTimeoutSeconds: 600 })
        grants += 1
        await turn.release()
      } catch {
        failed += 1
        await sleep(100)
      }
    }
  })
  for (const each of waiting) each.catch(() => undefined)
  await sleep(HOLD_MS)
  const stallMs = loop.longest()
  const kept = (/** @type {{ held: boolean } | undefined} */ each) => (each?.held ? 'kept' : 'LOST')
  const leases = `the lease on the lock was ${kept(lease)}, the unrelated one was ${kept(unrelated)}`
  await lease?.release().catch(() => undefined)
  grants = 0
  await sleep(SERVE_MS)
  stopped = true
  const found = { leases, stallMs, servingStallMs: loop.longest(), grants, failed }
  process.send?.(found)
  await Promise.race([lock.close(), sleep(5_000)])
  return found
}
