import type { Finding } from './checks/run.ts'
import type { DoneFault, Episode } from './episode.ts'
import type { LeaseHistory } from './history.ts'

/** A violation, and what happened around it. */
export interface Violation {
  /** The name of the check. */
  what: string
  /** The `--seed` and `--episode` that run it again. */
  episode: string
  lockName: string
  text: string
  /** Seconds since the start of the episode. */
  leases: Record<string, string | number>[]
  faults: Record<string, unknown>[]
}

/** The time around a violation that the report shows. */
const BEFORE_MS = 12_000
const AFTER_MS = 3_000

export function violationOf(episode: Episode, finding: Finding): Violation {
  const { check, text, lockName = '', isExcused = false } = finding
  const startMs = Math.min(...episode.done.map(({ fromMs }) => fromMs), ...episode.leases.map(({ askedAt }) => askedAt))
  const seconds = (ms: number): number => Math.round(ms - startMs) / 1_000
  const fromMs = (finding.fromMs ?? Number.POSITIVE_INFINITY) - BEFORE_MS
  const toMs = (finding.toMs ?? Number.NEGATIVE_INFINITY) + AFTER_MS
  const isNear = ({ name, knownAt, heldUntil = knownAt }: LeaseHistory): boolean =>
    name === lockName && heldUntil >= fromMs && knownAt <= toMs
  return {
    what: isExcused ? `excused ${check}` : check,
    episode: episode.seed,
    lockName,
    text,
    leases: episode.leases
      .filter(isNear)
      .sort((one, other) => one.knownAt - other.knownAt)
      .map((lease) => ({
        id: lease.id,
        is: finding.leases?.includes(lease) ? 'concerned' : '',
        token: lease.token,
        ...(lease.mode === 'shared' && { permits: lease.permits ?? 'shared' }),
        ttlSeconds: Math.round(lease.ttlMs) / 1_000,
        asked: seconds(lease.askedAt),
        known: seconds(lease.knownAt),
        heldUntil: lease.heldUntil === undefined ? 'never' : seconds(lease.heldUntil),
        end: lease.end,
      })),
    faults: episode.done
      .filter((done) => done.toMs >= fromMs && done.fromMs <= toMs)
      .map((done) => shown(done, seconds)),
  }
}

function shown({ fault, fromMs, toMs }: DoneFault, seconds: (ms: number) => number): Record<string, unknown> {
  const { atMs: _, ...rest } = fault
  return { from: seconds(fromMs), to: seconds(toMs), ...rest }
}
