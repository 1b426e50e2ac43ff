import { type ClientHistory, clientOf } from '../history.ts'
import { type Check, clientsOf, type InjectedFault, type Run } from './run.ts'
import { overlapMs } from './signal.ts'

/** A time in which one fault alone was in effect, and in which leases that are renewed must be kept. */
export interface Spared {
  fault: InjectedFault['fault']
  fromMs: number
  toMs: number
  /** Only these names. Absent: all. */
  names?: readonly string[]
  /** Claims are answered, too. */
  answers?: boolean
  /** What the fault itself has seen that must not be. */
  wrong?: readonly string[]
}

/** A fault can have an effect for so long after its end. */
const AFTER_MS = 3_000
/** What was stalled for a larger share of a lease may be the reason itself: a client, or the proxies. */
const STALLED_SHARE = 0.25

/** Under a fault that the store promises to bear, no lease that is renewed is lost, and claims are answered. */
export const kept: Check = {
  name: 'kept',
  find: (run) =>
    judged(run).flatMap(({ spared, leases, claims }) => [
      ...(spared.wrong ?? []).map((text) => ({
        text: `under ${spared.fault.kind} alone, ${text}`,
        ...{ fromMs: spared.fromMs, toMs: spared.toMs },
      })),
      ...leases
        .filter(({ end, heldUntil = 0 }) => end === 'lost' && heldUntil < spared.toMs)
        .map((lease) => ({
          text: `${lease.id} lost "${lease.name}" under ${spared.fault.kind} alone`,
          ...{ lockName: lease.name, leases: [lease], fromMs: spared.fromMs, toMs: spared.toMs },
        })),
      ...claims
        .filter(({ outcome }) => outcome === 'failed')
        .map(({ id, name, code = '' }) => ({
          text: `the claim ${id} of "${name}" failed with ${code} under ${spared.fault.kind} alone`,
          ...{ lockName: name, fromMs: spared.fromMs, toMs: spared.toMs },
        })),
    ]),
}

/** How many leases and claims the check has judged. */
export function keptOf(run: Run): { leases: number; claims: number } {
  const all = judged(run)
  const sum = (counts: readonly number[]): number => counts.reduce((total, each) => total + each, 0)
  return {
    leases: sum(all.map(({ leases }) => leases.length)),
    claims: sum(all.map(({ claims }) => claims.length)),
  }
}

/** For each spared time, the leases that were held at its begin, and the claims that were made and answered in it. */
function judged(run: Run) {
  return run.spared.map((spared) => {
    const { fromMs, toMs, names, answers = false } = spared
    const isSpared = (name: string): boolean => names?.includes(name) ?? true
    const calm = run.histories.filter(({ client }) => {
      const others = run.faults.filter((each) => each.fault !== spared.fault && hits(each, clientOf(client)))
      return others.every((other) => other.toMs + AFTER_MS < fromMs || other.fromMs > toMs)
    })
    const isStalled = ({ stalls }: ClientHistory, sinceMs: number, untilMs: number): boolean =>
      [...stalls, ...run.stalls].some((stall) => overlapMs(stall, sinceMs, untilMs) > STALLED_SHARE * run.longestTtlMs)
    const leases = calm.flatMap((history) =>
      history.leases.filter(({ kind, name, knownAt, heldUntil = 0 }) => {
        const isHeld = kind === 'keep' && isSpared(name) && knownAt < fromMs && heldUntil >= fromMs
        return isHeld && !isStalled(history, fromMs - run.longestTtlMs, Math.min(heldUntil + run.longestTtlMs, toMs))
      }),
    )
    const claims = calm.flatMap((history) =>
      history.claims.filter(({ name, askedAt, answeredAt = Number.POSITIVE_INFINITY }) => {
        const isWithin = answers && isSpared(name) && askedAt > fromMs && answeredAt < toMs
        return isWithin && !isStalled(history, askedAt, answeredAt)
      }),
    )
    return { spared, leases, claims }
  })
}

const hits = (fault: InjectedFault, client: number): boolean => clientsOf(fault)?.includes(client) ?? true
