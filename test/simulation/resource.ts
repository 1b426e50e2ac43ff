import type { History, LeaseTrack } from './history.ts'
import { excludes } from './plan.ts'

export interface Resource {
  /** `asked`: the writer has just made sure that it holds the lock. */
  write(track: LeaseTrack, asked: boolean): void
}

/**
 * The protected resource: it accepts a write only if no larger token has written before. Whether that kept the writers
 * in the order of their grants is judged by the order of the grants, not by the tokens.
 */
export function protectedResource(history: History): Resource {
  const highest = new Map<string, number>()
  const latest = new Map<string, number>()
  return {
    write({ lease, claim }, asked) {
      const { lockName, fencingToken } = lease
      const accepted = fencingToken >= (highest.get(lockName) ?? 0)
      const turn = history.turnOf(lease)
      const stale = turn < (latest.get(lockName) ?? 0)
      history.note(() => `${claim.process.name}: writes with ${fencingToken}: ${accepted ? 'taken' : 'refused'}`)
      if (accepted === stale) {
        history.violate('a stale writer is refused, and no other', `${claim.claimId}, turn ${turn} on "${lockName}"`)
      }
      if (!accepted) history.counts.refusedWrites += 1
      if (!accepted && asked && excludes(history.plan)) {
        history.violate('mutual exclusion', `${claim.claimId} held "${lockName}" and was stale`)
      }
      if (!accepted) return
      highest.set(lockName, fencingToken)
      latest.set(lockName, turn)
    },
  }
}
