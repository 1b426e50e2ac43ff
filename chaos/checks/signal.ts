import type { LeaseHistory, Stall } from '../history.ts'
import type { Check, Run } from './run.ts'

/**
 * A timer may run after the deadline and before the library's own timer, in the same turn of the event loop. Two of
 * them are 10 ms apart.
 */
const MOST_TICKS_LATE = 1

/** The signal of a lease aborts no later than its deadline, as soon as the process runs at all. */
export const signal: Check = {
  name: 'signal',
  find: ({ histories }) =>
    histories.flatMap(({ leases }) =>
      leases.flatMap((lease) => {
        const text = faultOf(lease)
        return text === undefined ? [] : [{ text, ...about(lease) }]
      }),
    ),
}

/** `held` is never true again after it was false or the signal has aborted. */
export const resurrection: Check = {
  name: 'resurrection',
  find: ({ histories }) =>
    histories.flatMap(({ resurrected, leases }) =>
      resurrected.map((id) => {
        const lease = leases.find((each) => each.id === id)
        return { text: `${id} was held again after its loss`, ...(lease && about(lease)) }
      }),
    ),
}

function faultOf({ id, name, loss }: LeaseHistory): string | undefined {
  if (loss === undefined) return undefined
  const { signalledAt, deadlineAt = Number.POSITIVE_INFINITY, ticksLate } = loss
  if (signalledAt === undefined) return `the loss of "${name}" was never signalled to ${id}`
  if (ticksLate <= MOST_TICKS_LATE) return undefined
  const lateMs = (signalledAt - deadlineAt).toFixed(1)
  return `the loss of "${name}" was signalled to ${id} ${lateMs} ms late, after timers had run ${ticksLate} times`
}

const about = (lease: LeaseHistory) => ({
  lockName: lease.name,
  leases: [lease],
  fromMs: lease.knownAt,
  toMs: lease.loss?.signalledAt ?? lease.heldUntil ?? lease.knownAt,
})

/** When losses were signalled, in milliseconds after the deadline. A negative time is before it. */
export interface SignalTimes {
  /** Of processes that ran at the deadline. */
  running: number[]
  /** Of processes that were paused or blocked at the deadline. */
  stalled: number[]
}

export function signalTimes({ histories }: Pick<Run, 'histories'>): SignalTimes {
  const times: SignalTimes = { running: [], stalled: [] }
  for (const { leases, stalls } of histories) {
    for (const { loss } of leases) {
      if (loss?.signalledAt === undefined || loss.deadlineAt === undefined) continue
      const { signalledAt, deadlineAt } = loss
      const isStalled = stalls.some((stall) => overlapMs(stall, deadlineAt, Math.max(deadlineAt, signalledAt)) >= 0)
      times[isStalled ? 'stalled' : 'running'].push(signalledAt - deadlineAt)
    }
  }
  return times
}

/** How long a stall and a time overlap. Negative if they do not. */
export const overlapMs = (stall: Stall, fromMs: number, toMs: number): number =>
  Math.min(stall.toMs, toMs) - Math.max(stall.fromMs, fromMs)

/** The value below which a share of the sorted values is. */
export function percentile(values: readonly number[], share: number): number | undefined {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]
}
