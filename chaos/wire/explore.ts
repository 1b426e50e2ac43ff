import { inspect } from 'node:util'
import { nowMs } from '../history.ts'
import { type Case, caseText, rowKey } from './case.ts'
import { casesOf, healthyOf, inDrawnOrder } from './cases.ts'
import type { StoreName } from './client.ts'
import { Grounds, type ServerPorts } from './grounds.ts'
import { inParallel } from './in-parallel.ts'
import { loadLibrary } from './library.ts'
import { type Outcome, runScene } from './run-scene.ts'
import type { Scene } from './scenes/scene.ts'
import type { Seen } from './wires.ts'

export interface Exploration {
  readonly dist: string
  readonly scenes: readonly Scene[]
  readonly stores: readonly StoreName[]
  /** Runs at the same time. */
  readonly jobs: number
  readonly seed: string
  /** How many pairs of faults to draw for each scene and store. */
  readonly pairs: number
  /** Draws this many cases of all, instead of all. */
  readonly sample?: number
  /** Draws this many rows of the report, each a scene on a store, instead of all. */
  readonly rows?: number
  /** Runs just these. */
  readonly only?: readonly Case[]
  /** With exchanged client packages. */
  readonly isMirrored?: boolean
  readonly servers?: ServerPorts
  report?(progress: Progress): void
  found?(violation: Violation): void
}

export interface Violation {
  readonly case: string
  readonly labels: readonly string[]
  readonly violations: readonly string[]
}

export interface Progress {
  readonly done: number
  readonly of: number
  readonly violations: number
}

/** One row of the report: a scene on a store. */
export interface Row {
  readonly scene: string
  readonly store: string
  readonly messages: number
  /** Runs in which a fault hit one message. */
  faults: number
  /** Redlock: runs in which the same fault hit the same message of two nodes. */
  majorities: number
  /** Runs with two faults, drawn by the seed. */
  pairs: number
  /** Cases whose message did not come: a timer or the scheduler decided otherwise than in the healthy run. */
  missed: number
  grants: number
  /** In a run without faults, and how many there must be. */
  readonly healthyGrants: number
  readonly leastGrants: number
}

export interface Explored {
  readonly rows: readonly Row[]
  readonly violations: readonly Violation[]
  /** Cases in which something took too long, but not when they were repeated. */
  readonly unrepeated: number
  readonly seconds: number
  /** Of this process: the clients and the proxies. */
  readonly cpuSeconds: number
}

/** Runs every scene without faults, then once for every message and every fault that can hit it. */
export async function explore(exploration: Exploration): Promise<Explored> {
  const startedAt = nowMs()
  const cpuAtStart = process.cpuUsage()
  const library = await loadLibrary(exploration.dist)
  await using grounds = new Grounds(library, exploration.servers)
  const violations: Violation[] = []
  const rows = new Map<string, Row>()
  const fail = (violation: Violation): void => {
    violations.push(violation)
    exploration.found?.(violation)
  }
  const running = new Set<Case>()
  const once = async (each: Case): Promise<Outcome> => {
    const ground = await grounds.take(each.scene, each.store)
    running.add(each)
    try {
      return await runScene({ ...each, library, ground })
    } catch (error) {
      const late = [`the harness failed: ${textOf(error)}`]
      return { violations: [], late, seen: [], injected: [], grants: 0 }
    } finally {
      running.delete(each)
      ground.leave()
    }
  }
  /** What took too long once, until it is repeated at the end: the machine may have been busy. */
  const suspects: { readonly each: Case; readonly late: readonly string[] }[] = []
  const run = async (each: Case): Promise<Outcome> => {
    const outcome = await tried(each, once)
    const { violations, late } = outcome
    if (violations.length > 0) fail({ case: caseText(each), labels: each.labels, violations: [...violations, ...late] })
    else if (late.length > 0) suspects.push({ each, late })
    return outcome
  }
  let unrepeated = 0
  const repeat = async ({ each, late }: (typeof suspects)[number]): Promise<void> => {
    const outcomes = [await once(each), await once(each), await once(each)]
    const again = outcomes.flatMap((outcome) => [...outcome.violations, ...outcome.late])
    const isWrong = outcomes.some((outcome) => outcome.violations.length > 0)
    const isSlow = outcomes.filter((outcome) => outcome.late.length > 0).length > 1
    if (!isWrong && !isSlow) unrepeated += 1
    else fail({ case: caseText(each), labels: each.labels, violations: [...new Set([...late, ...again])] })
  }
  /** It has happened in one of the running cases. With one job, it is exact. */
  const crash = (error: unknown): void => {
    const cases = [...running].map(caseText).join(' ')
    fail({ case: cases, labels: [], violations: [`uncaught: ${textOf(error)}`] })
  }
  process.on('uncaughtException', crash).on('unhandledRejection', crash)
  try {
    const cases = exploration.only ?? (await explored(exploration, run, rows))
    let done = 0
    await inParallel(cases, exploration.jobs, async (each) => {
      const { injected, grants } = await run(each)
      const row = rows.get(rowKey(each))
      if (row) {
        row[each.kind] += 1
        row.grants += grants
        if (injected.length < each.faults.size) row.missed += 1
      }
      done += 1
      exploration.report?.({ done, of: cases.length, violations: violations.length })
    })
    await inParallel(suspects, FEW_JOBS, repeat)
  } finally {
    process.off('uncaughtException', crash).off('unhandledRejection', crash)
  }
  const cpu = process.cpuUsage(cpuAtStart)
  return {
    rows: [...rows.values()],
    violations,
    unrepeated,
    seconds: (nowMs() - startedAt) / 1_000,
    cpuSeconds: (cpu.user + cpu.system) / 1e6,
  }
}

/**
 * Plays a case, and once more if its message did not come: timers decide about some messages, so the next try may have
 * it. What broke in the first try counts, although no fault has hit it.
 */
export async function tried(each: Case, once: (each: Case) => Promise<Outcome>): Promise<Outcome> {
  const first = await once(each)
  const isMissed = first.injected.length < each.faults.size
  return isMissed && first.violations.length === 0 && first.late.length === 0 ? once(each) : first
}

/** For runs that must not be disturbed by others: those that count messages, and those that judge slow cases. */
const FEW_JOBS = 10

/** With its causes. */
const textOf = (error: unknown): string => inspect(error)

/** Counts the messages of every scene without faults, and returns the cases to run. */
async function explored(
  exploration: Exploration,
  run: (each: Case) => Promise<Outcome>,
  rows: Map<string, Row>,
): Promise<readonly Case[]> {
  const all: Case[] = []
  await inParallel(healthyOf(exploration), Math.min(exploration.jobs, FEW_JOBS), async (each) => {
    // Twice: what timers or a busy machine send only once cannot be hit again.
    const healthy = [await run(each), await run(each)]
    const [first, second] = healthy.map(({ seen }) => seen) as [readonly Seen[], readonly Seen[]]
    const messages = second.filter(({ place }) => first.some((each) => each.place === place))
    const { scene, store, isMirrored } = each
    rows.set(rowKey(each), {
      ...{ scene: scene.name, store: store + (isMirrored ? '~' : ''), messages: messages.length },
      ...{ faults: 0, majorities: 0, pairs: 0, missed: 0, grants: 0 },
      healthyGrants: Math.max(...healthy.map(({ grants }) => grants)),
      // A client without faults is granted each lock after the scene.
      leastGrants: (scene.grants ?? scene.clients) + (scene.locks ?? 1),
    })
    all.push(...casesOf(each, messages, exploration))
  })
  return inDrawnOrder(all, exploration)
}
