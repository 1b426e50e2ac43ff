import type { Holder } from '../../core/claim/holder.ts'
import type { LeaseRecord, Metadata } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { type LockInfo, lockInfoFrom } from '../../core/lock-info.ts'
import { readPages } from '../../core/pages.ts'

export interface ForceReleaseOptions {
  /** Who does it and why. */
  by: string
  /**
   * PostgreSQL advisory locks only: if the holder does not let go when it is asked to, ends its connection, and with it
   * all other locks of that connection.
   *
   * @default false
   */
  endSession?: boolean
}

/**
 * Ends the leases that are on the name now, records who did it, and lets the next waiter have the lock. It ends no
 * lease that is newer than those that it has seen: a holder that came meanwhile is not the one that is known to be
 * dead.
 */
export async function forceRelease(
  holder: Holder,
  lockName: string,
  { by, endSession = false }: ForceReleaseOptions,
): Promise<LockInfo[]> {
  holder.assertSupports('force')
  const look = async () => (await readPages((query) => holder.inspect(query), { lockName })).leases
  let leases = await look()
  const first = new Set(leases.map(({ fencingToken }) => fencingToken))
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    // The leases of the first look have ended, by themselves or by an earlier try.
    if (!leases.some(({ fencingToken }) => first.has(fencingToken))) return []
    const ended = await endLeases(holder, { lockName, leases, by, metadata: { forcedBy: by }, endSession })
    if (ended.length > 0) return ended.map(lockInfoFrom)
    // Readers that came meanwhile have to be ended together with the earlier ones.
    leases = await look()
  }
  throw new StoreError(`"${lockName}" was not released by force: new holders came ${MAX_TRIES} times meanwhile`)
}

/**
 * Ends these leases, and no newer one. Returns those that it ended. With a driver that takes the lock in one step that
 * is all of them, or none if the lock has a newer lease.
 *
 * @throws `UnsupportedError`, and what the store reports
 */
export async function endLeases(holder: Holder, forced: Forced): Promise<readonly LeaseRecord[]> {
  holder.assertSupports('force')
  const { lockName, leases, by, metadata, endSession } = forced
  if (!holder.capabilities.steal) return endOneByOne(holder, leases, { by, endSession })
  const stealUpTo = leases.reduce((most, { fencingToken }) => Math.max(most, fencingToken), 0)
  const claim = { lockName, mode: 'exclusive', ttlMs: TTL_MS, waitMs: 0, steal: true, stealUpTo } as const
  const result = await holder.acquire({ ...claim, metadata, heartbeat: false, minHoldMs: 0, maxHoldMs: TTL_MS })
  if (!result.granted) return []
  await result.lease.release()
  return leases
}

async function endOneByOne(
  holder: Holder,
  leases: readonly LeaseRecord[],
  options: { readonly by: string; readonly endSession: boolean },
): Promise<readonly LeaseRecord[]> {
  const answers = await holder.forceRelease(leases, options)
  const failure = answers.find((answer) => answer instanceof Error)
  if (failure !== undefined) throw failure
  return leases.filter((_, at) => answers[at] === true)
}

export interface Forced {
  readonly lockName: string
  readonly leases: readonly LeaseRecord[]
  readonly by: string
  /** Of the lease that replaces the others for a moment. */
  readonly metadata: Metadata
  readonly endSession: boolean
}

/** If this process dies before the release, the lock is free after this time. */
const TTL_MS = 5_000
const MAX_TRIES = 10
