import { checkJson } from '../../core/arguments.ts'
import type { Holder } from '../../core/claim/holder.ts'
import type { LeaseRecord, Metadata } from '../../core/driver.ts'
import { InvalidArgumentError, ResultNotKeptError, UnsupportedError } from '../../core/errors.ts'
import { MAX_NAME_LENGTH } from '../../core/limits.ts'
import { checkText } from '../../core/names.ts'

/**
 * Where the result of a job is kept: in the metadata of a lease that no process holds. It has to outlive the process
 * that made it, so it is neither renewed nor released. The store ends it with its time to live.
 */

/** A result that is in the store. */
export interface FoundResult {
  readonly metadata: Metadata | undefined
  /** On the monotonic clock: when the store was asked. The result was there at some moment after that. */
  readonly askedMs: number
}

/** The lock names of a key. They have the same beginning and different ends, so no run is the result of another key. */
export function namesOf(key: string): { run: string; done: string } {
  checkText('key', key, MAX_KEY_LENGTH)
  return { run: `once:${key}:run`, done: `once:${key}:done` }
}

export const MAX_KEY_LENGTH = MAX_NAME_LENGTH - 'once:'.length - ':done'.length

/** Checked before the job runs: if its result could not be kept, every instance would run it again. */
export function assertKeepsResults({ capabilities, driverName, longestTtlMs }: Holder, forMs: number): void {
  if (capabilities.expiry === 'session') {
    throw new UnsupportedError(
      `the ${driverName} driver's leases last as long as a connection, so a result could not outlive the process ` +
        'that made it',
    )
  }
  if (!capabilities.metadata) {
    throw new UnsupportedError(`the ${driverName} driver keeps no metadata with a lock, so it cannot keep results`)
  }
  if (forMs <= longestTtlMs) return
  const rule = `at most ${longestTtlMs / 1_000}, the longest that the ${driverName} driver keeps anything`
  throw new InvalidArgumentError('forSeconds', forMs / 1_000, rule)
}

export function resultClaim(holder: Holder, lockName: string, ttlMs: number, metadata: Metadata) {
  const unheld = { waitMs: 0, heartbeat: false, minHoldMs: 0, maxHoldMs: ttlMs }
  return holder.createClaim({ lockName, mode: 'exclusive', ttlMs, metadata, ...unheld })
}

export async function findResult(holder: Holder, done: string, nowMs: number): Promise<FoundResult | undefined> {
  const record = await recordOf(holder, done)
  return record && { metadata: record.metadata, askedMs: nowMs }
}

/** True if there was one. */
export async function forgetResult(holder: Holder, done: string): Promise<boolean> {
  const record = await recordOf(holder, done)
  return record === undefined ? false : holder.release(record)
}

async function recordOf(holder: Holder, done: string): Promise<LeaseRecord | undefined> {
  const [record] = (await holder.inspect({ lockName: done })).leases
  return record
}

/** If the result cannot be kept, the reason is kept instead: the job is done, and must not run again. */
export function metadataFrom(result: unknown): Metadata {
  if (result === undefined) return {}
  try {
    return { result: checkJson('result', result) }
  } catch (error) {
    if (!(error instanceof InvalidArgumentError)) throw error
    return { notKept: error.message.slice(0, 1_000) }
  }
}

/** The type is an assumption of the caller: that a key always means the same job. */
export function resultFrom<T>(key: string, metadata: Metadata | undefined): T {
  if (metadata?.['notKept'] !== undefined) throw new ResultNotKeptError(key, String(metadata['notKept']))
  // A copy for each caller, so that none sees what another does to its result.
  return structuredClone(metadata?.['result']) as T
}
