import type { Loss } from '../checks/losses.ts'
import { clientOf, type LeaseHistory } from '../history.ts'
import { fenced, fencedMutex, type LockModel, mutex, type Operation, readWriteLock, semaphore } from './model.ts'
import { checkHistory } from './windows.ts'

/** What is judged of a lease. Without a mode it is exclusive. */
export type LeaseRecord = Pick<
  LeaseHistory,
  | 'id'
  | 'name'
  | 'token'
  | 'askedAt'
  | 'knownAt'
  | 'heldUntil'
  | 'confirmed'
  | 'mode'
  | 'limit'
  | 'permits'
  | 'released'
  | 'releasedAt'
>

export interface LinearReport {
  names: number
  operations: number
  windows: number
  /** A sentence for each lock name whose history no correct lock could have made. */
  violations: string[]
  /** A sentence for each lock name that was too much to decide. Such a history has not passed. */
  undecided: string[]
}

/** Judges the leases of a run, each lock name on its own. */
export function checkLeases(leases: readonly LeaseRecord[], losses: readonly Loss[] = []): LinearReport {
  const report: LinearReport = { names: 0, operations: 0, windows: 0, violations: [], undecided: [] }
  for (const name of new Set(leases.map((lease) => lease.name))) {
    const sameName = leases.filter((lease) => lease.name === name)
    const model = modelOf(sameName)
    const operations = sameName.flatMap((lease) => operationsOf(lease, losses))
    const { verdict, windows, texts } = checkHistory(model, operations)
    report.names += 1
    report.operations += operations.length
    report.windows += windows
    const sentence = `"${name}" as a ${model.name}: ${texts.join('; ')}`
    if (verdict === 'violation') report.violations.push(sentence)
    if (verdict === 'undecided') report.undecided.push(sentence)
  }
  return report
}

/**
 * A grant took effect between the claim and its answer. The lease ended in the store when it was released, when it
 * expired or when its process was dead for long enough: not before its holder last relied on it. That is a release
 * without an answer. A holder that never relied on it says nothing about its end. A loss of the store may end it
 * sooner.
 */
export function operationsOf(lease: LeaseRecord, losses: readonly Loss[] = []): [Operation, Operation] {
  const { id, token, askedAt, knownAt, heldUntil = askedAt } = lease
  const lostAt = Math.max(askedAt, Math.min(...losses.filter((loss) => hits(loss, lease)).map(({ fromMs }) => fromMs)))
  const endedAt = Math.min(heldUntil, lostAt)
  const isAnswered = lostAt === Number.POSITIVE_INFINITY && lease.released === true && lease.releasedAt !== undefined
  return [
    {
      id: `${id} acquire`,
      lease: id,
      what: {
        kind: 'acquire',
        answer: 'granted',
        mode: lease.mode ?? 'exclusive',
        permits: lease.permits ?? 1,
        ...(token > 0 && { token }),
      },
      beginMs: askedAt,
      endMs: knownAt,
    },
    {
      id: `${id} release`,
      lease: id,
      what: { kind: 'release', ...(isAnswered && { answer: true }) },
      beginMs: endedAt,
      ...(isAnswered && { endMs: lease.releasedAt as number }),
    },
  ]
}

const hits = ({ toMs, clients, isOfConfirmed = false }: Loss, { id, askedAt, confirmed }: LeaseRecord): boolean =>
  askedAt <= toMs && (isOfConfirmed || !confirmed) && (clients?.includes(clientOf(id)) ?? true)

function modelOf(leases: readonly LeaseRecord[]): LockModel {
  const hasTokens = leases.every(({ token }) => token > 0)
  const limits = leases.flatMap(({ limit }) => (limit === undefined ? [] : [limit]))
  const isShared = leases.some(({ mode }) => mode === 'shared')
  if (!isShared) return hasTokens ? fencedMutex : mutex
  const model = limits.length > 0 ? semaphore(Math.max(...limits)) : readWriteLock
  return hasTokens ? fenced(model) : model
}
