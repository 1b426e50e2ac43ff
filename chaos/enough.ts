import type { Report } from './report.ts'

/** The least number of grants for each second under faults. */
const GRANTS_PER_SECOND = 0.5
/** The least share of the planned kinds of faults that must have been injected at least once. */
const KINDS_SHARE = 0.75

export interface Planned {
  clients: number
  /** The kinds of faults in the plans of all episodes. */
  kinds: readonly string[]
}

/** Reasons why a run without violations proves nothing: it did too little. */
export function tooLittle(report: Report, { clients, kinds }: Planned): string[] {
  const reasons: string[] = []
  const leastGrants = Math.max(clients, Math.ceil(report.seconds * GRANTS_PER_SECOND))
  if (report.grants < leastGrants)
    reasons.push(`too few grants: ${report.grants}, but at least ${leastGrants} are needed`)
  const injected = kinds.filter((kind) => (report.faultsByKind[kind] ?? 0) > 0)
  const leastKinds = Math.max(1, Math.floor(kinds.length * KINDS_SHARE))
  if (injected.length < leastKinds) {
    const missing = kinds.filter((kind) => !injected.includes(kind)).join(', ') || 'all'
    reasons.push(
      `too few kinds of faults: ${injected.length}, but at least ${leastKinds} are needed. Missing: ${missing}`,
    )
  }
  const { undecided } = report.linear
  if (undecided.length > 0) {
    reasons.push(`${undecided.length} histories are not decided by the check of linearizability: ${undecided[0]}`)
  }
  return reasons
}
