import { createHash } from 'node:crypto'
import type { Cycle } from '../core/deadlock/find.ts'
import type { LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { chainIdOf, chainIdsOf } from '../core/lease/chain.ts'
import { recordPrefix } from '../primitives/lock/forced-release-record.ts'
import type { History } from './history.ts'
import type { StoreView } from './lock-view.ts'
import type { CycleStep, LeaseDetail, LockDetail, WaiterDetail } from './wire.ts'

/**
 * Everything about one lock. It never contains a claim id: a client that knows one can end its lease.
 */
export function detailOf(name: string, view: StoreView, history: History): LockDetail {
  const { leases = [], waiters = [] } = view.locks.get(name) ?? {}
  const forcedReleases = (view.forcedReleases.get(recordPrefix(name)) ?? []).map(
    ({ atMs, record: { by, reason, ended } }) => ({
      by,
      reason,
      at: atMs,
      ended,
    }),
  )
  const cycle = view.cycles.find((each) => each.some(({ waiter }) => waiter.lockName === name)) ?? []
  return {
    name,
    now: view.reading.nowMs,
    leases: leases.slice(0, MAX_SHOWN).map((lease) => leaseDetail(lease, view.reading.waiters)),
    waiters: waiters.slice(0, MAX_SHOWN).map(waiterDetail),
    waiterCount: waiters.length,
    spans: history.of(name),
    gaps: history.gaps(),
    watchedSince: history.watchedSinceMs,
    forcedReleases: forcedReleases.sort((a, b) => b.at - a.at),
    cycle: stepsOf(cycle),
  }
}

export const stepsOf = (cycle: Cycle): CycleStep[] =>
  cycle.map(({ waiter, blocker }) => ({
    waiter: waiter.holderId,
    lock: waiter.lockName,
    blocker: blocker.holderId,
  }))

function leaseDetail(lease: LeaseRecord, waiters: readonly WaiterRecord[]): LeaseDetail {
  const { holderId, mode, permits, limit, fencingToken, acquiredAtMs, expiresAtMs, metadata } = lease
  return {
    holder: holderId,
    shared: mode === 'shared',
    permits,
    ...(limit !== undefined && { limit }),
    token: fencingToken,
    ...(fencingToken === 0 && { mark: markOf(lease) }),
    ...(acquiredAtMs > 0 && { since: acquiredAtMs }),
    ...(expiresAtMs !== undefined && { end: expiresAtMs }),
    ...(metadata !== undefined && { metadata: JSON.stringify(metadata, undefined, 2) }),
    waitsFor: waitsUnder(lease, waiters),
  }
}

/** Not the claim's id itself. The same in every process: the next request may reach another one. */
export const markOf = ({ claimId }: LeaseRecord): string =>
  createHash('sha256').update(claimId).digest('base64url').slice(0, 22)

/** The names that claims inside the callback of this lease wait for. Their ids begin with its id. */
function waitsUnder({ claimId }: LeaseRecord, waiters: readonly WaiterRecord[]): string[] {
  const own = chainIdOf(claimId)
  const names = waiters
    .filter((waiter) => waiter.claimId.startsWith(own) && chainIdsOf(waiter.claimId).slice(1).includes(own))
    .map(({ lockName }) => lockName)
  return [...new Set(names)].slice(0, MAX_SHOWN)
}

const waiterDetail = ({ holderId, mode, permits, waitingSinceMs }: WaiterRecord): WaiterDetail => ({
  holder: holderId,
  shared: mode === 'shared',
  permits,
  since: waitingSinceMs,
})

/** How many holders and waiters of one lock are shown. The counts are complete. */
const MAX_SHOWN = 200
