import { randomUUID } from 'node:crypto'
import { loadavg } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, inject, it } from 'vitest'
import type { Capabilities } from '../../../src/core/driver.ts'
import { capabilities as postgres } from '../../../src/drivers/postgres.ts'
import { capabilities as advisory } from '../../../src/drivers/postgres-advisory.ts'
import { capabilities as redis } from '../../../src/drivers/redis.ts'
import { capabilities as redlock } from '../../../src/drivers/redlock.ts'
import { capabilities as sqlite } from '../../../src/drivers/sqlite.ts'
import { makeFolder } from '../../harness/folders.ts'
import { idleMs, mostOut, overlaps, overtaken, type Turn } from '../../harness/sharing-history.ts'
import { startWorker } from '../../harness/worker.ts'

/**
 * A longer run with more processes:
 * HOLDFAST_SHARING_SECONDS=60 HOLDFAST_SHARING_PROCESSES=16 npm test -- test/primitives/lock/sharing-processes.test.ts
 */
const seconds = Number(process.env['HOLDFAST_SHARING_SECONDS'] ?? 3)
const processes = Number(process.env['HOLDFAST_SHARING_PROCESSES'] ?? 8)
const isLong = process.env['HOLDFAST_SHARING_SECONDS'] !== undefined
const LIMIT = 4

/**
 * How long free permits may be idle while a claim waits. A wake-up takes milliseconds, and up to seconds on a machine
 * that is busy with other tests. A lost wake-up is covered by the slow poll after 10 s.
 */
const WAKE_UP_MS = 8_000

const folder = makeFolder('sharing')
afterAll(() => folder.remove())

const servers = inject('servers')
const hosts = (urls: readonly string[] | undefined) => (urls ?? []).map((each) => new URL(each).host).join(',')
const stores: [name: string, capabilities: Capabilities, url: string][] = [
  ['sqlite', sqlite, `sqlite:${join(folder.path, 'sharing.db')}`],
  ['redis', redis, servers.redis?.[0] ?? ''],
  ['postgres', postgres, servers.postgres ?? ''],
]
// In the short run, the conformance suite covers these.
if (isLong) {
  stores.push(
    ['redis cluster', redis, `redis+cluster://${hosts(servers.cluster)}`],
    ['postgres-advisory', advisory, (servers.postgres ?? '').replace(/^postgres(ql)?:/, 'postgres+advisory:')],
    ['redlock', redlock, `redlock://${hosts(servers.redis)}?persistent=1`],
  )
}

describe.sequential(`${processes} processes share for ${seconds} s`, () => {
  it.each(stores)(
    '%s: never a writer beside anybody, none overtaken; permits are never too many, nor idle; no deadlock',
    async (name, capabilities, url) => {
      const turns = await history(url, capabilities.limit ? LIMIT : null)
      const of = (...kinds: Turn['kind'][]) => turns.filter(({ kind }) => kinds.includes(kind))
      const pages = of('read', 'write')
      const [permits, several] = [of('permits'), of('several')]
      const idle = idleMs(permits, LIMIT)
      const queued = pages.filter(({ kind, queuedMs }) => kind === 'write' && queuedMs !== null)
      if (isLong) console.log(report(name, turns, queued, idle))

      expect(overlaps(pages)).toEqual([])
      if (capabilities.queue) expect(overtaken(pages)).toEqual([])
      expect(overlaps(several)).toEqual([])
      expect(mostOut(permits)).toBeLessThanOrEqual(capabilities.limit ? LIMIT : 0)
      expect(idle.at(-1) ?? 0).toBeLessThan(WAKE_UP_MS)
      // Otherwise the run proves nothing.
      if (capabilities.limit) expect(mostOut(permits)).toBeGreaterThan(1)
      expect(queued.length).toBeGreaterThan(1)
      expect(several.length).toBeGreaterThan(1)
    },
    (seconds + 120) * 1_000,
  )
})

async function history(url: string, limit: number | null): Promise<Turn[]> {
  const task = { url, scope: randomUUID(), seconds, limit }
  const starting = Array.from({ length: processes }, () =>
    startWorker({ module: WORKER }, { callTimeoutMs: (seconds + 100) * 1_000 }),
  )
  const workers = await Promise.all(starting)
  try {
    return (await Promise.all(workers.map((worker) => worker.call('share', task) as Promise<Turn[]>))).flat()
  } finally {
    for (const worker of workers) await worker.kill()
  }
}

function report(name: string, turns: readonly Turn[], queued: readonly Turn[], idle: readonly number[]): string {
  const counts = ['read', 'write', 'permits', 'several'].map(
    (kind) => `${turns.filter((turn) => turn.kind === kind).length} ${kind}`,
  )
  const at = (list: readonly number[], share: number) => (list[Math.floor(list.length * share)] ?? 0).toFixed(1)
  const figures = (list: readonly number[]) =>
    `p50 ${at(list, 0.5)}, p99 ${at(list, 0.99)}, most ${at(list, 0.99999)} ms`
  const waitsMs = queued.map(({ askedMs, beganMs }) => beganMs - askedMs).sort((a, b) => a - b)
  const load = `load ${loadavg()[0]?.toFixed(1)}`
  const writers = `${queued.length} writers waited, ${figures(waitsMs)}`
  const permits = `permits idle ${idle.length} times, ${figures(idle)}`
  return `${name}: ${counts.join(', ')}; ${writers}; ${permits}; ${load}`
}

const WORKER = fileURLToPath(new URL('../../harness/sharing-worker.mjs', import.meta.url))

describe('the checks find', () => {
  const turn = (kind: Turn['kind'], times: [number, number | null, number, number], permits = 1): Turn => {
    const [askedMs, queuedMs, beganMs, endedMs] = times
    return { kind, names: ['a'], permits, askedMs, queuedMs, beganMs, endedMs }
  }

  it('a writer beside a reader', () => {
    const reader = turn('read', [0, null, 1, 5])
    expect(overlaps([reader, turn('read', [0, null, 2, 6])])).toEqual([])
    expect(overlaps([reader, turn('write', [0, 1, 5, 6])])).toEqual([])
    expect(overlaps([reader, turn('write', [0, 1, 4, 6])])).toHaveLength(1)
    expect(overlaps([reader, { ...turn('write', [0, 1, 4, 6]), names: ['b'] }])).toEqual([])
  })

  it('a writer that a later reader has overtaken', () => {
    const writer = turn('write', [0, 2, 10, 11])
    expect(overtaken([writer, turn('read', [1, 3, 4, 5])])).toEqual([])
    expect(overtaken([writer, turn('read', [3, null, 12, 13])])).toEqual([])
    expect(overtaken([writer, turn('read', [3, null, 4, 5])])).toHaveLength(1)
  })

  it('too many permits, and idle ones', () => {
    const turns = [
      turn('permits', [0, null, 1, 5], 2),
      turn('permits', [0, 1, 4, 6], 2),
      turn('permits', [0, 2, 9, 10], 1),
    ]
    expect(mostOut(turns)).toBe(4)
    expect(idleMs(turns, 4)).toEqual([3, 4])
    expect(idleMs([...turns, turn('permits', [0, 1, 3, 10], 1)], 4)).toEqual([2, 4])
  })
})
