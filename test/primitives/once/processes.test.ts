import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Redis } from 'ioredis'
import { describe, inject, it } from 'vitest'
import { until } from '../../harness/processes.ts'
import { startWorker, type Worker } from '../../harness/worker.ts'

/**
 * Several processes try to run every key, and are killed while they do. The effect checks the token and records the key
 * in Redis. The driver keeps the leases and results.
 *
 * HOLDFAST_ONCE_KEYS=500 for the long run: 8 processes, 24 kills.
 */
const KEYS = Number(process.env['HOLDFAST_ONCE_KEYS'] ?? 40)
const IS_LONG = KEYS > 40
const PROCESSES = IS_LONG ? 8 : 3
const KILLS = IS_LONG ? 24 : 3
const DRIVERS = ['redis', 'postgres', 'sqlite'] as const
const PATIENCE_MS = IS_LONG ? 600_000 : 60_000

describe.concurrent('once: processes that are killed during a run', { timeout: PATIENCE_MS + 20_000 }, () => {
  for (const driverName of IS_LONG ? DRIVERS : DRIVERS.slice(0, 1)) {
    it(`${driverName}: the effect of each key happens exactly once, and all callers get the same result`, async () => {
      const folder = mkdtempSync(join(tmpdir(), 'holdfast-once-'))
      const { redis, postgres } = inject('servers')
      const urls = { redis: redis?.[0] ?? '', postgres: postgres ?? '', sqlite: `sqlite:${folder}/locks.db` }
      try {
        await killInTheMiddle(driverName, urls[driverName])
      } finally {
        rmSync(folder, { recursive: true })
      }
    })
  }
})

async function killInTheMiddle(driverName: string, url: string): Promise<void> {
  const redisUrl = inject('servers').redis?.[0] ?? ''
  const prefix = `once-${randomBytes(6).toString('hex')}`
  const task = { url, redisUrl, prefix, keys: KEYS, thinkMs: IS_LONG ? 250 : 20 }
  const redis = new Redis(redisUrl)
  // Replaced without waiting, so that the others go on, and the next process is killed while there is work left.
  const slots = Array.from({ length: PROCESSES }, () => begin(task))
  try {
    for (let kills = 0; kills < KILLS; kills += 1) {
      const effects = Math.floor((KEYS * (kills + 0.5)) / KILLS)
      await until(async () => (await redis.llen(`${prefix}:effects`)) >= effects, {
        timeoutMs: PATIENCE_MS,
        failure: () => `there were never ${effects} effects`,
      })
      const index = kills % PROCESSES
      await (await slots[index])?.worker.kill()
      slots[index] = begin(task)
    }
    const begun = await Promise.all(slots)
    const results = (await Promise.all(begun.map((slot) => slot.results))) as Record<string, { madeBy: string }>[]
    const effects = (await redis.lrange(`${prefix}:effects`, 0, -1)).map(Number).sort((a, b) => a - b)
    assert.deepEqual(
      effects,
      Array.from({ length: KEYS }, (_, key) => key),
    )
    const [first, ...others] = results
    assert.equal(Object.keys(first ?? {}).length, KEYS)
    for (const other of others) assert.deepEqual(other, first)
    const runs = Number(await redis.get(`${prefix}:runs`))
    assert.ok(runs >= KEYS)
    if (IS_LONG) {
      const load = loadavg()[0]?.toFixed(1)
      console.log(
        `${driverName}: ${PROCESSES} processes, ${KILLS} kills, ${KEYS} keys, ${runs} runs, ` +
          `${effects.length} effects; load ${load}`,
      )
      assert.ok(runs > KEYS, 'no run was killed: this test shows nothing')
    }
  } finally {
    for (const slot of slots) await slot.then(({ worker }) => worker.kill())
    redis.disconnect()
  }
}

async function begin(task: object): Promise<{ worker: Worker; results: Promise<unknown> }> {
  const worker = await startWorker({ module: WORKER }, { callTimeoutMs: PATIENCE_MS })
  const results = worker.call('runAll', task)
  // A killed process rejects, and its results do not count.
  results.catch(() => {})
  return { worker, results }
}

const WORKER = fileURLToPath(new URL('../../harness/once-worker.mjs', import.meta.url))
