import { check, type Loss, type Verdict } from './check.ts'
import { Clients } from './clients.ts'
import { Draw } from './draw.ts'
import { type ClientHistory, type LeaseHistory, nowMs } from './history.ts'
import type { LoadMeter } from './load.ts'
import { chosen, drawFaults, type Fault } from './plan.ts'
import { queueForOneLock } from './queue.ts'
import type { RecordHistory } from './record.ts'
import { pause, type Scenario, type Setting, type SettingOptions, type Stage } from './stage.ts'

export interface EpisodeOptions extends SettingOptions {
  scenario: Scenario
  /** Decides every random choice in this episode. */
  seed: string
  seconds: number
  faultEveryMs: number
  faults: readonly string[] | undefined
  isLossy: boolean
  dist: string
  pythonWorker: string
  meter: LoadMeter
}

/** A fault that was injected, and when. */
export interface DoneFault {
  fault: Fault
  fromMs: number
  toMs: number
}

export interface Episode {
  seed: string
  seconds: number
  setting: Setting
  serverVersion: string
  /** Everything that the client processes have recorded. */
  histories: ClientHistory[]
  leases: LeaseHistory[]
  losses: readonly Loss[]
  /** What is still in the store after all leases and places in queues must have ended. */
  left: string[]
  verdict: Verdict
  resurrected: string[]
  claims: number
  refused: number
  errors: Record<string, number>
  unexpected: string[]
  /** Reasons why this episode proves little: a client crashed or hung, or the harness could not inject a fault. */
  problems: string[]
  done: DoneFault[]
  skipped: Record<string, number>
  records: RecordHistory[]
  /** The clients in the order in which they queued for one lock after the faults, and the tokens that they got. */
  queue: { client: number; token: number }[]
}

/** The setting and the faults of an episode, which are the same for the same seed. */
export function planEpisode(options: Omit<EpisodeOptions, 'dist' | 'pythonWorker' | 'meter'>): {
  setting: Setting
  faults: Fault[]
} {
  const { scenario, seed, seconds, faultEveryMs, faults, isLossy } = options
  const setting = scenario.drawSetting(new Draw(`${seed}/setting`), options)
  const recipes = chosen(scenario.recipes(setting, { isLossy }), faults)
  const pace = { forMs: seconds * 1_000, everyMs: faultEveryMs }
  return { setting, faults: drawFaults(new Draw(`${seed}/faults`), recipes, pace) }
}

/** Starts fresh servers and clients, injects faults for `seconds`, then heals and ends everything and judges it. */
export async function runEpisode(options: EpisodeOptions): Promise<Episode> {
  const { scenario, seed, seconds, dist, pythonWorker, meter } = options
  const { setting, faults } = planEpisode(options)
  await using stage = await scenario.open(setting, meter)
  const portsOf = (client: number): number[] => stage.links.portsOf(client)
  const plans = setting.clients.map((plan) => ({ ...plan, settings: { ...plan.settings, ...stage.clientSettings } }))
  await using clients = await Clients.start({ clients: plans, dist, pythonWorker, seed, portsOf, meter })
  const startedMs = nowMs()
  const hurt = await hurtAll({ stage, clients, faults, endMs: startedMs + seconds * 1_000 })
  const ranSeconds = (nowMs() - startedMs) / 1_000
  const { queueUrl } = stage
  const queue = queueUrl === undefined ? [] : await queueForOneLock(clients, setting.clients.length, dist, queueUrl)
  const { histories, problems } = await clients.stop()

  const leases = histories.flatMap((history) => history.leases)
  const errors: Record<string, number> = {}
  for (const history of histories) {
    for (const [code, count] of Object.entries(history.errors)) errors[code] = (errors[code] ?? 0) + count
  }
  return {
    seed,
    seconds: ranSeconds,
    setting,
    serverVersion: await stage.version(),
    histories,
    leases,
    losses: stage.losses,
    left: [],
    verdict: check(leases, stage.losses),
    resurrected: histories.flatMap((history) => history.resurrected),
    claims: sum(histories.map(({ claims }) => claims.length)),
    refused: sum(histories.map(({ claims }) => claims.filter(({ outcome }) => outcome === 'refused').length)),
    errors,
    unexpected: [...new Set(histories.flatMap((history) => history.unexpected))],
    problems: [...problems, ...hurt.problems],
    done: hurt.done,
    skipped: hurt.skipped,
    records: stage.records?.histories ?? [],
    queue,
  }
}

interface Hurting {
  stage: Stage
  clients: Clients
  faults: readonly Fault[]
  endMs: number
}

async function hurtAll({
  stage,
  clients,
  faults,
  endMs,
}: Hurting): Promise<Pick<Episode, 'done' | 'skipped' | 'problems'>> {
  const over = new AbortController()
  const startMs = nowMs()
  const done: DoneFault[] = []
  const skipped: Record<string, number> = {}
  const problems: string[] = []
  const start = async (fault: Fault): Promise<void> => {
    const fromMs = nowMs()
    try {
      if (await applyFault({ stage, clients, fault, signal: over.signal })) done.push({ fault, fromMs, toMs: nowMs() })
      else skipped[fault.kind] = (skipped[fault.kind] ?? 0) + 1
    } catch (error) {
      problems.push(`the fault ${JSON.stringify(fault)} failed: ${error instanceof Error ? error.stack : error}`)
    }
  }
  const running: Promise<void>[] = []
  for (const fault of faults) {
    await pause(startMs + fault.atMs - nowMs(), over.signal)
    running.push(start(fault))
  }
  await pause(endMs - nowMs(), over.signal)
  // Ends and heals every fault in flight.
  over.abort()
  await Promise.all(running)
  return { done: done.sort((a, b) => a.fromMs - b.fromMs), skipped, problems }
}

interface Applying {
  stage: Stage
  clients: Clients
  fault: Fault
  signal: AbortSignal
}

async function applyFault({ stage, clients, fault, signal }: Applying): Promise<boolean> {
  const { links } = stage
  switch (fault.kind) {
    case 'late':
    case 'held':
    case 'silent': {
      const end = links.begin(fault.ways, fault)
      await pause(fault.forMs, signal)
      end()
      return true
    }
    case 'cut':
      links.cut(fault.ways)
      return true
    case 'process-paused':
      return clients.pause(fault.client, () => pause(fault.forMs, signal))
    case 'process-killed':
      return clients.kill(fault.client, () => pause(fault.downMs, signal))
    case 'loop-blocked':
      return clients.block(fault.client, fault.forMs)
    default:
      return stage.apply(fault, signal)
  }
}

const sum = (numbers: readonly number[]): number => numbers.reduce((total, each) => total + each, 0)
