import type { Clients } from './clients.ts'
import type { Fault, NetworkFault, Ways } from './faults.ts'
import { nowMs } from './history.ts'
import type { Trouble } from './links.ts'
import { pause, type Scenario, type Stage } from './stage.ts'

/** A call that has begun before a clock was stepped ends within this time. */
const STEP_MS = 50

export interface Injection {
  scenario: Scenario
  stage: Stage
  clients: Clients
  plan: readonly Fault[]
  endMs: number
  /** Is called with each fault when it begins. */
  onFault?(fault: Fault): void
}

/** A fault that was injected, and when. */
export interface DoneFault {
  fault: Fault
  fromMs: number
  toMs: number
}

export interface Injected {
  done: DoneFault[]
  /** How many faults of each kind were drawn, but not possible at their time. */
  skipped: Record<string, number>
  problems: string[]
}

/** Injects the planned faults, each at its time, until `endMs`. Then it heals everything. */
export async function injectAll(injection: Injection): Promise<Injected> {
  const over = new AbortController()
  const startMs = nowMs()
  const done: DoneFault[] = []
  const skipped: Record<string, number> = {}
  const problems: string[] = []
  const start = async (fault: Fault): Promise<void> => {
    const fromMs = nowMs()
    injection.onFault?.(fault)
    try {
      if (await applyFault(injection, fault, over.signal)) done.push({ fault, fromMs, toMs: nowMs() })
      else skipped[fault.kind] = (skipped[fault.kind] ?? 0) + 1
    } catch (error) {
      problems.push(`the fault ${JSON.stringify(fault)} failed: ${error instanceof Error ? error.stack : error}`)
    }
  }
  const running: Promise<void>[] = []
  for (const fault of injection.plan) {
    await pause(startMs + fault.atMs - nowMs(), over.signal)
    running.push(start(fault))
  }
  await pause(injection.endMs - nowMs(), over.signal)
  // Ends and heals every fault in flight.
  over.abort()
  await Promise.all(running)
  return { done: done.sort((a, b) => a.fromMs - b.fromMs), skipped, problems }
}

async function applyFault(
  { scenario, stage, clients }: Injection,
  fault: Fault,
  signal: AbortSignal,
): Promise<boolean> {
  const { links, losses } = stage
  switch (fault.kind) {
    case 'late-replies':
    case 'late-requests':
    case 'held':
    case 'silent': {
      const end = links.begin(fault.ways, troubleOf(fault))
      await pause(fault.forMs, signal)
      // The end of a black hole resets the connections that have lost bytes in it.
      if (fault.kind === 'silent') noteCut(fault.ways)
      end()
      return true
    }
    case 'cut':
      noteCut(fault.ways)
      links.cut(fault.ways)
      return true
    case 'process-paused':
      return clients.pause(fault.client, () => pause(fault.forMs, signal))
    case 'process-killed':
      return clients.kill(fault.client, () => pause(fault.downMs, signal))
    case 'loop-blocked':
      return clients.block(fault.client, fault.forMs)
    case 'locks-released': {
      const fromMs = nowMs()
      let isDone = false
      const release = async (): Promise<void> => {
        isDone = (await clients.call(fault.client, 'unlockAll')) === true
      }
      const isPossible = await clients.alone(fault.client, release)
      // Only session locks are leases. If there was no answer, it may have been done.
      const what = { clients: [fault.client], endsAll: isDone }
      if (isPossible && scenario.endsWithConnection) losses.push({ fromMs, toMs: nowMs(), ...what })
      return isPossible && isDone
    }
    case 'client-clock-stepped': {
      const { byMs } = fault
      // A step forwards ends leases before their time. The way back from a step backwards ends those that were granted
      // or renewed while the clock was wrong, and no others.
      const noteStep = (since: { writtenFromMs?: number }): void => {
        if (scenario.hasClientClock) losses.push({ fromMs: nowMs(), toMs: nowMs() + STEP_MS, ...since })
      }
      const writtenFromMs = nowMs() - STEP_MS
      if (byMs > 0) noteStep({})
      return clients.stepClocks(fault.clients, byMs, async () => {
        await pause(fault.forMs, signal)
        if (byMs < 0) noteStep({ writtenFromMs })
      })
    }
    default:
      return stage.apply(fault, signal)
  }

  function noteCut(ways: Ways): void {
    const atMs = nowMs()
    if (scenario.endsWithConnection) losses.push({ fromMs: atMs, toMs: atMs, clients: ways.clients })
  }
}

function troubleOf(fault: Exclude<NetworkFault, { kind: 'cut' }>): Trouble {
  if (fault.kind === 'held' || fault.kind === 'silent') return fault
  return { kind: 'late', direction: fault.kind === 'late-replies' ? 'toClient' : 'toServer', byMs: fault.byMs }
}
