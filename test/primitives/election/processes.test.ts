import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, inject, it } from 'vitest'
import { connect } from '../../../src/connect.ts'
import type { Driver } from '../../../src/core/driver.ts'
import { until } from '../../harness/processes.ts'
import { type FaultProxy, startProxy } from '../../harness/proxy.ts'
import { startWorker, type Worker } from '../../harness/worker.ts'

/**
 * Two processes campaign in several elections at once. The leader is killed, paused, cut off from the store, or
 * resigns, and the other process is elected in all of them. Then the roles change. Each election counts as a round.
 *
 * HOLDFAST_ELECTION_ROUNDS=200 for the long run, which also checks times and prints them.
 */
const ROUNDS = Number(process.env['HOLDFAST_ELECTION_ROUNDS'] ?? 5)
const IS_LONG = ROUNDS > 5
const ELECTIONS = IS_LONG ? 10 : ROUNDS
/** Long enough for a busy machine: a leader that loses its term by itself could not be interrupted. */
const TTL_SECONDS = 2
const PATIENCE_MS = 60_000

describe.concurrent('election: never two leaders, in spite of faults', {
  timeout: 60_000 + ROUNDS * 6_000,
}, () => {
  it('redis: resigned, cut off, paused, killed', async () => {
    await provoke('redis', inject('servers').redis?.[0] ?? '')
  })

  it('postgres: resigned, cut off, paused, killed', async () => {
    await provoke('postgres', inject('servers').postgres ?? '')
  })

  it('sqlite: resigned, cut off, paused, killed', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'holdfast-election-'))
    try {
      await provoke('sqlite', `sqlite:${folder}/locks.db`)
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})

/**
 * All faults. In the long run only the fault that needs a proxy has one, because it would be part of the measurement.
 */
async function provoke(driverName: string, url: string): Promise<void> {
  const direct = await provokeEach(driverName, url, IS_LONG ? ['resigned', 'paused', 'killed'] : [], false)
  const cuttable = await provokeEach(driverName, url, IS_LONG ? ['cut off'] : FAULTS, true)
  assert.deepEqual([...direct, ...cuttable], [])
}

/** Resolves with a list of violations. */
async function provokeEach(
  driverName: string,
  url: string,
  faults: readonly Fault[],
  cuttable: boolean,
): Promise<string[]> {
  if (faults.length === 0) return []
  const names = Array.from({ length: ELECTIONS }, (_, index) => `election:${randomBytes(6).toString('hex')}:${index}`)
  const store = await connect(url)
  const candidates = await Promise.all([1, 2].map(() => startCandidate(url, names, cuttable)))
  try {
    const stage: Stage = { names, store, candidates, terms: new Map(), leader: 0 }
    await elect(stage, await beginCampaigns(stage, 0))
    const complaints: string[] = []
    for (const fault of faults) {
      const rounds: Round[] = []
      while (rounds.length < ROUNDS) rounds.push(...(await succession(stage, fault)))
      complaints.push(...judge(`${driverName}, ${fault}`, fault, rounds))
    }
    return complaints
  } finally {
    await Promise.all(candidates.map((candidate) => candidate.end()))
    await store.close()
  }
}

const FAULTS = ['resigned', 'cut off', 'paused', 'killed'] as const
type Fault = (typeof FAULTS)[number]

interface Stage {
  readonly names: readonly string[]
  readonly store: Driver
  readonly candidates: Candidate[]
  /** The last term of each election. */
  readonly terms: Map<string, number>
  leader: number
}

interface Round {
  readonly successionMs: number
  /** How long before its successor's election the old leader was notified. Unknown if it is dead or paused. */
  readonly toldBeforeMs?: number
  /** How long its process was stalled at that time. No timer can fire then; `held` is correct nevertheless. */
  readonly stalledMs?: number
}

/** Applies one fault to the leader of all elections: the other process is elected in each. */
async function succession(stage: Stage, fault: Fault): Promise<Round[]> {
  const { names, candidates } = stage
  const leader = candidates[stage.leader] as Candidate
  const next = 1 - stage.leader
  const campaigns = await beginCampaigns(stage, next)
  if (fault === 'resigned') {
    const rounds: Round[] = []
    for (const name of names) {
      const { atMs, wasHeld } = (await leader.worker.call('resign', name)) as { atMs: number; wasHeld: boolean }
      assert.equal(wasHeld, true, 'the leader had lost its term before')
      const elected = await campaigns.get(name)
      rounds.push(await roundOf(stage, { name, faultMs: atMs, elected, reason: 'NOT_HELD' }))
    }
    stage.leader = next
    return rounds
  }
  const faultMs = nowMs()
  if (fault === 'killed') await leader.worker.kill()
  else if (fault === 'paused') await leader.worker.pause()
  else await leader.cut(true)
  const elected = await Promise.all(campaigns.values())
  if (fault === 'paused') leader.worker.resume()
  const rounds = await Promise.all(
    names.map((name, index) => {
      const told = fault === 'killed' ? {} : { reason: 'LEASE_LOST' }
      return roundOf(stage, { name, faultMs, elected: elected[index], ...told })
    }),
  )
  if (fault === 'killed') await leader.restart()
  if (fault === 'cut off') await leader.cut(false)
  stage.leader = next
  // A paused leader is notified when it wakes up, which says nothing about the order.
  return fault === 'paused' ? rounds.map(({ successionMs }) => ({ successionMs })) : rounds
}

/** What must hold in every round, also on a slow machine. */
async function roundOf(
  { candidates, leader, terms }: Stage,
  seen: { name: string; faultMs: number; elected: Elected | undefined; reason?: string },
): Promise<Round> {
  const { name, faultMs, elected, reason } = seen
  assert.ok(elected !== undefined)
  assert.ok(elected.term > (terms.get(name) ?? 0), `term ${elected.term} after ${terms.get(name)}`)
  terms.set(name, elected.term)
  const successionMs = elected.atMs - faultMs
  if (reason === undefined) return { successionMs }
  const old = (await candidates[leader]?.worker.call('look', name)) as Look
  assert.deepEqual([old.held, old.aborted], [false, true], 'two held it at once')
  assert.deepEqual(
    old.demotions.map((demotion) => demotion.reason),
    [reason],
  )
  const { atMs = Number.NaN, stalledMs = 0 } = old.demotions[0] ?? {}
  return { successionMs, toldBeforeMs: elected.atMs - atMs, stalledMs }
}

/** The violations of a round. Times are checked only in the long run. */
function judge(title: string, fault: Fault, rounds: readonly Round[]): string[] {
  const told = rounds.flatMap(({ toldBeforeMs }) => toldBeforeMs ?? [])
  const late = rounds.filter(
    ({ toldBeforeMs = 1, stalledMs = 0 }) => toldBeforeMs <= 0 && toldBeforeMs + stalledMs <= 0,
  )
  const stalled = told.filter((beforeMs) => beforeMs <= 0).length - late.length
  if (!IS_LONG) {
    // The resignation is reported before it is sent, in the same step, also under load.
    return fault === 'resigned' && Math.min(...told) <= 0 ? [`${title}: told ${-Math.min(...told)} ms late`] : []
  }
  const ms = rounds.map(({ successionMs }) => successionMs).sort((a, b) => a - b)
  const at = (share: number): number => ms[Math.ceil(ms.length * share) - 1] ?? Number.NaN
  const times = `p50 ${at(0.5).toFixed(1)} p95 ${at(0.95).toFixed(1)} most ${at(1).toFixed(1)} ms`
  const order = told.length > 0 ? `, old leader told ${Math.min(...told).toFixed(1)} ms before or earlier` : ''
  const load = loadavg()[0]?.toFixed(1)
  const counts = `${ms.length} rounds, ${times}${order}, ${late.length} late, ${stalled} by a stall`
  const summary = `${title}: ${counts}; load ${load}`
  console.log(summary)
  const tooSlow = fault === 'resigned' ? at(0.95) >= 50 : at(1) >= TTL_SECONDS * 1_100
  return tooSlow || late.length > 0 ? [summary] : []
}

interface Elected {
  readonly term: number
  readonly atMs: number
}

interface Look {
  readonly held: boolean
  readonly aborted: boolean
  readonly demotions: readonly { readonly atMs: number; readonly reason: string; readonly stalledMs: number }[]
}

/** Resolves when the store has all its claims, as waiters or as leases. */
async function beginCampaigns(stage: Stage, index: number): Promise<Map<string, Promise<Elected>>> {
  const { names, store, candidates } = stage
  const worker = (candidates[index] as Candidate).worker
  const campaigns = new Map(names.map((name) => [name, worker.call('campaign', name) as Promise<Elected>]))
  for (const campaign of campaigns.values()) campaign.catch(() => {})
  const isFirst = stage.terms.size === 0
  await until(
    async () => {
      const pages = await Promise.all(names.map((lockName) => store.inspect({ lockName })))
      return pages.every(({ leases, waiters }) => waiters.length === 1 || (isFirst && leases.length === 1))
    },
    { timeoutMs: PATIENCE_MS, failure: () => 'the candidates never came to the store' },
  )
  return campaigns
}

async function elect({ terms }: Stage, campaigns: Map<string, Promise<Elected>>): Promise<void> {
  for (const [name, campaign] of campaigns) terms.set(name, (await campaign).term)
}

interface Candidate {
  worker: Worker
  cut(on: boolean): Promise<void>
  /** Starts it again after it was killed. */
  restart(): Promise<void>
  end(): Promise<void>
}

async function startCandidate(url: string, names: readonly string[], cuttable: boolean): Promise<Candidate> {
  const hasNetwork = !url.startsWith('sqlite:')
  const proxy = cuttable && hasNetwork ? await startProxy(Number(new URL(url).port)) : undefined
  const start = async (): Promise<Worker> => {
    const worker = await startWorker({ module: WORKER }, { callTimeoutMs: PATIENCE_MS })
    await worker.call('open', { url: through(url, proxy), names, timeoutSeconds: TTL_SECONDS })
    return worker
  }
  const candidate: Candidate = {
    worker: await start(),
    async cut(on) {
      if (proxy === undefined) await candidate.worker.call('cutOff', on)
      else if (on) proxy.blackHole()
      else proxy.heal()
    },
    async restart() {
      candidate.worker = await start()
    },
    async end() {
      await candidate.worker.kill()
      await proxy?.close()
    },
  }
  return candidate
}

function through(url: string, proxy: FaultProxy | undefined): string {
  if (proxy === undefined) return url
  const address = new URL(url)
  address.hostname = '127.0.0.1'
  address.port = String(proxy.port)
  return address.href
}

/** The monotonic clock of the machine, which is the same in every process. */
function nowMs(): number {
  const [seconds, nanoseconds] = process.hrtime()
  return seconds * 1_000 + nanoseconds / 1_000_000
}

const WORKER = fileURLToPath(new URL('../../harness/election-worker.mjs', import.meta.url))
