import { type Overlap, overlapsOf } from './checks/exclusion.ts'
import { type FallingToken, fallingOf } from './checks/fencing.ts'
import { isExcused, type Loss } from './checks/losses.ts'
import { byName } from './checks/run.ts'
import type { LeaseHistory } from './history.ts'

export type { Overlap } from './checks/exclusion.ts'
export type { FallingToken } from './checks/fencing.ts'
export type { Loss } from './checks/losses.ts'

export interface Verdict {
  overlaps: Overlap[]
  /** Overlaps that a loss explains: the first lease may not have been replicated. */
  excused: Overlap[]
  falling: FallingToken[]
}

/** Judges the leases of a run. Leases of different names are independent. */
export function check(leases: readonly LeaseHistory[], losses: readonly Loss[] = []): Verdict {
  const verdict: Verdict = { overlaps: [], excused: [], falling: [] }
  for (const sameName of byName(leases).values()) {
    for (const overlap of overlapsOf(sameName)) {
      verdict[isExcused(overlap, losses) ? 'excused' : 'overlaps'].push(overlap)
    }
    verdict.falling.push(...fallingOf(sameName, losses))
  }
  return verdict
}
