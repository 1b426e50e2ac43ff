import { FREE, type LockModel, type LockState, type Operation } from './model.ts'
import { type Bounds, type Finding, search } from './search.ts'

export interface Linearizability {
  verdict: Finding['verdict']
  /** How many parts the history was cut into. */
  windows: number
  /** The reason for each window that is not linearizable, or that could not be decided. */
  texts: string[]
}

/** Judges the history of one lock name. A long one is cut where that does not change the verdict. */
export function checkHistory(
  model: LockModel,
  operations: readonly Operation[],
  bounds: Partial<Bounds> = {},
): Linearizability {
  const windows = cut(operations)
  const findings = windows.map(({ operations: some, start }) => search(model, some, { start, bounds }))
  const verdicts = findings.map(({ verdict }) => verdict)
  return {
    verdict: (['violation', 'undecided'] as const).find((each) => verdicts.includes(each)) ?? 'linearizable',
    windows: windows.length,
    texts: findings.flatMap((finding) => ('text' in finding ? [finding.text] : [])),
  }
}

interface Window {
  operations: Operation[]
  start: LockState
}

/**
 * Cuts a history at each time at which no operation is open and no lease is held. The next window begins with a lock
 * that is free. If a release has begun but has no answer, it may as well have taken effect at the cut: a lock that is
 * free can do all that a lock with this lease can, except refuse a claim. So where claims were refused, such a release
 * prevents the cut.
 */
function cut(operations: readonly Operation[]): Window[] {
  const hasRefusal = operations.some(({ what }) => what.answer === 'refused' || what.answer === false)
  const windows: Window[] = []
  let window: Window = { operations: [], start: FREE }
  /** Until when an operation is open. A claim without an answer is open for ever. */
  let openUntilMs = Number.NEGATIVE_INFINITY
  const left = new Map<string, number>()
  const released = new Set(operations.flatMap(({ lease, what }) => (what.kind === 'release' ? [lease] : [])))
  for (const { lease, what } of operations) {
    const isHeldForEver = what.answer === 'granted' && !released.has(lease)
    left.set(lease, (left.get(lease) ?? 0) + (isHeldForEver ? Number.POSITIVE_INFINITY : 1))
  }
  /** Leases of which an operation has begun, but not all. */
  const begun = new Set<string>()
  let mark = FREE.mark
  for (const operation of operations.toSorted((a, b) => a.beginMs - b.beginMs)) {
    if (window.operations.length > 0 && begun.size === 0 && openUntilMs < operation.beginMs) {
      windows.push(window)
      window = { operations: [], start: { held: [], mark } }
    }
    window.operations.push(operation)
    const { what, lease, endMs } = operation
    const more = (left.get(lease) ?? 0) - 1
    left.set(lease, more)
    if (more > 0) begun.add(lease)
    else begun.delete(lease)
    if (what.kind === 'acquire' && what.token !== undefined) mark = Math.max(mark, what.token)
    const canWait = what.kind === 'release' && !hasRefusal
    if (endMs !== undefined || !canWait) openUntilMs = Math.max(openUntilMs, endMs ?? Number.POSITIVE_INFINITY)
  }
  if (window.operations.length > 0) windows.push(window)
  return windows
}
