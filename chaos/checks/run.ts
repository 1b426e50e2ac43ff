import type { ClaimHistory, ClientHistory, LeaseHistory, RateHistory, Stall } from '../history.ts'
import type { RecordHistory } from '../record.ts'
import type { Spared } from './kept.ts'
import type { Loss } from './losses.ts'

/** Everything that is known of an episode when it has ended. */
export interface Run {
  histories: readonly ClientHistory[]
  faults: readonly InjectedFault[]
  losses: readonly Loss[]
  spared: readonly Spared[]
  /** When the process of the proxies was stalled. */
  stalls: readonly Stall[]
  records: readonly RecordHistory[]
  /** The clients in the order in which they queued for one lock after the faults, and the tokens that they got. */
  queue: readonly { client: number; token: number }[]
  /** What is still in the store after all leases and places in queues must have ended. */
  left: readonly string[]
  /** Whether the driver serves waiters in their order. */
  hasQueue: boolean
  callTimeoutMs: number
  waiterTtlMs: number
  /** The longest lease. Those that are held for as long as possible are as long. */
  longestTtlMs: number
}

/** A fault, with what says whom it hits. A fault that names no client hits all of them. */
export interface InjectedFault {
  fault: { kind: string; client?: number; clients?: readonly number[]; ways?: { clients: readonly number[] } }
  fromMs: number
  toMs: number
}

/** A broken promise. */
export interface Finding {
  /** The name of the check. */
  check: string
  text: string
  lockName?: string
  /** The time that it concerns, for what happened around it. */
  fromMs?: number
  toMs?: number
  /** The leases that it concerns, in their order. */
  leases?: readonly LeaseHistory[]
  /** A loss of the store explains it. It is not a violation. */
  isExcused?: true
}

/** Judges one promise. A pure function of the run. */
export interface Check {
  name: string
  find(run: Run): Omit<Finding, 'check'>[]
}

export const leasesOf = ({ histories }: Run): LeaseHistory[] => histories.flatMap(({ leases }) => leases)
export const claimsOf = ({ histories }: Run): ClaimHistory[] => histories.flatMap(({ claims }) => claims)
export const ratesOf = ({ histories }: Run): RateHistory[] => histories.flatMap(({ rates }) => rates)

export function byName<T extends { name: string }>(all: readonly T[]): Map<string, T[]> {
  const groups = new Map<string, T[]>()
  for (const each of all) {
    const group = groups.get(each.name)
    if (group === undefined) groups.set(each.name, [each])
    else group.push(each)
  }
  return groups
}

/** The clients that a fault hits, or undefined for all of them. */
export const clientsOf = ({ fault }: InjectedFault): readonly number[] | undefined =>
  fault.client === undefined ? (fault.clients ?? fault.ways?.clients) : [fault.client]
