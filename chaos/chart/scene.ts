import type { Verdict } from '../check.ts'
import type { DoneFault } from '../episode.ts'
import { clientOf, type LeaseHistory } from '../history.ts'

/** What a chart is made from: an episode, or a part of one. */
export interface ChartSource {
  leases: readonly LeaseHistory[]
  done: readonly DoneFault[]
  verdict: Pick<Verdict, 'overlaps' | 'falling'>
}

/** The part of an episode that a chart shows: one lock name for some seconds. */
export interface Scene {
  name: string
  fromMs: number
  toMs: number
  /** The begin of the episode, which is 0 on the time axis. */
  startMs: number
  /** The leases of the name that were held within the scene, in the order of their begin. */
  leases: HeldLease[]
  faults: DoneFault[]
  /** How much there is to see. */
  interest: number
}

export type HeldLease = LeaseHistory & { heldUntil: number }

const SCENE_MS = 24_000
const STEP_MS = 1_000
/** Short leases are a few pixels wide: above this many, a scene shows no more. */
const ENOUGH_TURNS = 60

/** Finds the lock name and the time with the most faults and changes of hands. A violation always wins. */
export function pickScene(source: ChartSource, forMs: number = SCENE_MS): Scene | undefined {
  const times = [...source.leases.map(({ askedAt }) => askedAt), ...source.done.map(({ fromMs }) => fromMs)]
  const startMs = Math.min(...times)
  const endMs = Math.max(...source.leases.map(({ knownAt, heldUntil = knownAt }) => heldUntil))
  let best: Scene | undefined
  for (const name of [...new Set(source.leases.map((lease) => lease.name))].sort()) {
    const held = source.leases
      .filter((lease): lease is HeldLease => lease.name === name && (lease.heldUntil ?? 0) > lease.knownAt)
      .sort((a, b) => a.knownAt - b.knownAt || (a.id < b.id ? -1 : 1))
    for (let fromMs = startMs; fromMs === startMs || fromMs + forMs < endMs + STEP_MS; fromMs += STEP_MS) {
      const toMs = fromMs + forMs
      const leases = held.filter(({ knownAt, heldUntil }) => knownAt < toMs && heldUntil > fromMs)
      const faults = source.done.filter((fault) => fault.fromMs < toMs && fault.toMs >= fromMs)
      const interest = interestOf({ source, leases, faults })
      if (leases.length > 0 && interest > (best?.interest ?? -1)) {
        best = { name, fromMs, toMs, startMs, leases, faults, interest }
      }
    }
  }
  return best
}

interface Candidate {
  source: ChartSource
  leases: readonly HeldLease[]
  faults: readonly DoneFault[]
}

function interestOf({ source: { verdict }, leases, faults }: Candidate): number {
  const ids = new Set(leases.map(({ id }) => id))
  const violations = [
    ...verdict.overlaps.map(({ second }) => second),
    ...verdict.falling.map(({ after }) => after),
  ].filter(({ id }) => ids.has(id))
  const handOffs = leases.filter(({ id }, at) => at > 0 && clientOf(id) !== clientOf(leases[at - 1]?.id ?? '')).length
  const kinds = new Set(faults.map(({ fault }) => fault.kind)).size
  const longTurns = leases.filter(({ knownAt, heldUntil }) => heldUntil - knownAt > 200).length
  return 1_000 * violations.length + 4 * kinds + 2 * faults.length + Math.min(handOffs, ENOUGH_TURNS) + longTurns
}

/** The clients that a fault hits, or undefined if it hits a server, and so all of them. */
export function clientsOf({ fault }: DoneFault): readonly number[] | undefined {
  if ('client' in fault) return [fault.client]
  return 'ways' in fault ? fault.ways.clients : undefined
}
