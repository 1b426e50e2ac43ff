import type { ClaimHistory, Stall } from '../history.ts'
import type { Check } from './run.ts'
import { overlapMs } from './signal.ts'

/** How much later than promised an answer may come. The time in which its process was stalled does not count. */
const WITHIN_MS = 1_000

/**
 * Every claim is answered in time: one that waits when its waiting time is over, one that does not wait when a call to
 * the store may take no longer, and one that was aborted at once.
 */
export const waiters: Check = {
  name: 'waiters',
  find: ({ histories, callTimeoutMs }) =>
    histories.flatMap(({ claims, stalls, aliveAt = 0 }) =>
      claims.flatMap((claim) => {
        const lateMs = lateBy(claim, { stalls, aliveAt, callTimeoutMs })
        if (lateMs <= WITHIN_MS) return []
        const { id, name, outcome = 'not answered' } = claim
        const text = `the claim ${id} of "${name}" was ${outcome} ${Math.round(lateMs)} ms after it was due`
        return [{ text, lockName: name, fromMs: claim.askedAt, toMs: claim.answeredAt ?? aliveAt }]
      }),
    ),
}

function lateBy(
  { askedAt, waitMs = Number.POSITIVE_INFINITY, abortedAt = Number.POSITIVE_INFINITY, answeredAt }: ClaimHistory,
  { stalls, aliveAt, callTimeoutMs }: { stalls: readonly Stall[]; aliveAt: number; callTimeoutMs: number },
): number {
  const dueAt = Math.min(askedAt + (waitMs === 0 ? callTimeoutMs : waitMs), abortedAt)
  const endAt = answeredAt ?? aliveAt
  if (endAt - dueAt <= WITHIN_MS) return endAt - dueAt
  // A process that is stalled while its timer is due runs it late by as much.
  const stalledMs = stalls.reduce((sum, stall) => sum + Math.max(0, overlapMs(stall, askedAt, endAt)), 0)
  return endAt - dueAt - stalledMs
}
