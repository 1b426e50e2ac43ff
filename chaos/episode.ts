import { check, type Loss, type Verdict } from './check.ts'
import type { Spared } from './checks/kept.ts'
import { Clients } from './clients.ts'
import { Draw } from './draw.ts'
import type { Fault } from './faults.ts'
import { type ClientHistory, type LeaseHistory, nowMs, type Stall } from './history.ts'
import { type DoneFault, injectAll } from './inject.ts'
import { leftInStore } from './left.ts'
import type { LoadMeter } from './load.ts'
import { chosen, drawFaults } from './plan.ts'
import { queueForOneLock } from './queue.ts'
import { type RecordHistory, RecordServer } from './record.ts'
import type { Scenario, Setting, SettingOptions } from './stage.ts'
import { watchStalls } from './stalls.ts'

export type { DoneFault }

/** How long after the end of the longest lease the store may take to be empty. */
const LEFT_MS = 2_000

export interface EpisodeOptions extends SettingOptions {
  scenario: Scenario
  /** Decides every random choice in this episode. */
  seed: string
  seconds: number
  faultEveryMs: number
  dist: string
  pythonWorker: string
  meter: LoadMeter
  /** Is called with each fault when it begins. */
  onFault?(fault: Fault): void
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
  spared: readonly Spared[]
  /** When the process of the proxies was stalled. */
  stalls: readonly Stall[]
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
  const { scenario, seed, seconds, faultEveryMs, faults } = options
  const setting = scenario.drawSetting(new Draw(`${seed}/setting`), options)
  const recipes = chosen(scenario.recipes(setting), faults, scenario.faultNames)
  const pace = { forMs: seconds * 1_000, everyMs: faultEveryMs }
  return { setting, faults: drawFaults(new Draw(`${seed}/faults`), recipes, pace) }
}

/** Starts fresh servers and clients, injects faults for `seconds`, then heals and ends everything and judges it. */
export async function runEpisode(options: EpisodeOptions): Promise<Episode> {
  const { scenario, seed, seconds, dist, pythonWorker, meter } = options
  const { setting, faults } = planEpisode(options)
  await using stage = await scenario.open(setting, { meter, dist })
  await using records = await RecordServer.open()
  using watched = watchStalls()
  const portsOf = (client: number): number[] => stage.links.portsOf(client)
  const more = { ...stage.clientSettings, recordPort: records.port }
  const plans = setting.clients.map((plan) => ({ ...plan, settings: { ...plan.settings, ...more } }))
  await using clients = await Clients.start({ clients: plans, dist, pythonWorker, seed, portsOf, meter })
  const startedMs = nowMs()
  const injected = await injectAll({ ...options, stage, clients, plan: faults, endMs: startedMs + seconds * 1_000 })
  const ranSeconds = (nowMs() - startedMs) / 1_000
  const queueProblems: string[] = []
  // A client that has crashed is not in the queue. What it printed is worth more than its place.
  const queueing = scenario.hasQueue ? queueForOneLock(clients, plans.length, dist, stage.url) : Promise.resolve([])
  const queue = await queueing.catch((error: unknown) => {
    queueProblems.push(`the clients did not queue for one lock: ${error}`)
    return []
  })
  const { histories, problems } = await clients.stop()
  const longestMs = Math.max(setting.longestTtlMs, ...plans.map(({ settings }) => settings.waiterTtlSeconds * 1_000))
  const wasAhead = injected.done.some(({ fault }) => fault.kind === 'restarted-at-wrong-time' && fault.byMs > 0)
  const left = await leftInStore({ dist, url: stage.url, withinMs: longestMs + LEFT_MS, wasAhead })

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
    spared: stage.spared ?? [],
    stalls: watched.stalls,
    left,
    verdict: check(leases, stage.losses),
    resurrected: histories.flatMap((history) => history.resurrected),
    claims: sum(histories.map(({ claims }) => claims.length)),
    refused: sum(histories.map(({ claims }) => claims.filter(({ outcome }) => outcome === 'refused').length)),
    errors,
    unexpected: [...new Set(histories.flatMap((history) => history.unexpected))],
    problems: [...problems, ...injected.problems, ...queueProblems],
    done: injected.done,
    skipped: injected.skipped,
    records: records.histories,
    queue,
  }
}

const sum = (numbers: readonly number[]): number => numbers.reduce((total, each) => total + each, 0)
