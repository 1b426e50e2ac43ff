import type { AcquireAnswer, Claim, LeaseRecord } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import { leftOver } from '../shared/groups.ts'
import { booleanArray, numberArray, textArray } from './arrays.ts'
import type { Row } from './connections.ts'
import { rowLocked } from './errors.ts'
import type { CallName } from './statements.ts'
import { withoutUnstorable } from './unstorable.ts'

/** What all claims of a list are sent with. The SQL in `protocol/postgres` says what each parameter means. */
export interface AcquireContext {
  call(statement: CallName, values: readonly (string | null)[]): Promise<Row>
  /** The channel of this driver and the secret of the call, for the claims that wait. */
  readonly address: string
  readonly relaxed: string
}

type Answers = readonly (AcquireAnswer | Error)[]

/**
 * Claims that use force and groups are rare. So a list that has some is sent in parts, in order: each claim that uses
 * force is a call of its own, and so is each run of groups. A failure counts for its own part only.
 */
export async function acquire(claims: readonly Claim[], context: AcquireContext): Promise<Answers> {
  const start = claims.findIndex(({ forceUpTo, group }) => forceUpTo !== undefined || group !== undefined)
  if (start === -1) return sendPlain(claims, context)
  const { forceUpTo } = claims[start] as Claim
  const length = forceUpTo !== undefined ? 1 : claims.slice(start).findIndex(({ group }) => group === undefined)
  const end = length === -1 ? claims.length : start + length
  const part = async (from: number, to: number, send: typeof acquire): Promise<Answers> => {
    const of = claims.slice(from, to)
    return send(of, context).catch((error: Error) => of.map(() => error))
  }
  return [
    ...(await part(0, start, sendPlain)),
    ...(await part(start, end, forceUpTo === undefined ? sendGroups : acquireByForce)),
    ...(await part(end, claims.length, acquire)),
  ]
}

const sendPlain = (claims: readonly Claim[], context: AcquireContext): Promise<Answers> =>
  withoutUnstorable(
    claims.map((claim) => [claim]),
    (part) => acquirePlain(part, context),
  )

function sendGroups(claims: readonly Claim[], context: AcquireContext): Promise<Answers> {
  const groups = new Map<string | undefined, Claim[]>()
  for (const claim of claims) groups.set(claim.group, [...(groups.get(claim.group) ?? []), claim])
  return withoutUnstorable([...groups.values()], (part) => acquireGroups(part, context))
}

async function acquirePlain(claims: readonly Claim[], { call, address, relaxed }: AcquireContext): Promise<Answers> {
  if (claims.length === 0) return []
  const { lockNames, claimIds, holderIds, ttls, metadata } = claimArrays(claims)
  const modes = booleanArray(claims.map(({ mode }) => mode === 'shared'))
  const limits = numberArray(claims.map(({ limit }) => limit))
  const permits = numberArray(claims.map((claim) => claim.permits))
  const waiterTtls = numberArray(claims.map(({ waiterTtlMs }) => waiterTtlMs))
  const to = claims.some(({ waiterTtlMs }) => waiterTtlMs > 0) ? address : ''
  const terms = [modes, limits, permits, ttls, waiterTtls, metadata, to, relaxed]
  return answersTo(claims, await call('acquire', [lockNames, claimIds, holderIds, ...terms]))
}

async function acquireGroups(claims: readonly Claim[], { call, relaxed }: AcquireContext): Promise<Answers> {
  const { lockNames, claimIds, holderIds, ttls, metadata } = claimArrays(claims)
  const groups = textArray(claims.map(({ group }) => group))
  return answersTo(
    claims,
    await call('acquire_groups', [lockNames, claimIds, groups, holderIds, ttls, metadata, relaxed]),
  )
}

/** One answer of `holdfast_acquire` or `holdfast_acquire_group`. Null: not known. */
type SentAnswer =
  | { readonly fencingToken: number; readonly grantedAt: number }
  | {
      readonly refusedAt: number
      readonly ahead?: number | null
      /** JSON has no infinity, so it comes as a text: a plain client's lease may have no end. */
      readonly until?: number | string | null
      readonly holder?: LeaseRecord | null
      readonly free?: true
      readonly leftOver?: true
    }
  | null

function answersTo(claims: readonly Claim[], row: Row): Answers {
  const sent = jsonIn<SentAnswer[]>('acquire', row['answers'])
  // Of the refusals on one name, only the first has the holder.
  const holders = new Map<string, LeaseRecord>()
  for (const [index, { lockName }] of claims.entries()) {
    const answer = sent[index]
    if (answer && 'refusedAt' in answer && answer.holder) holders.set(lockName, answer.holder)
  }
  return claims.map(({ lockName, claimId, ttlMs, waiterTtlMs }, index) => {
    const answer = sent[index]
    if (!answer) return rowLocked(lockName)
    if ('fencingToken' in answer) {
      return { granted: true, fencingToken: answer.fencingToken, ttlMs, acquiredAtMs: answer.grantedAt }
    }
    if (answer.leftOver) return leftOver(lockName)
    const answeredAtMs = answer.refusedAt
    if (answer.free) return { granted: false, free: true, answeredAtMs }
    const holder = holders.get(lockName)
    // The holder is the claim itself, if it was handed the lock while the rest of a list was decided.
    const shown = holder === undefined || holder.claimId === claimId ? {} : { holder }
    const place = waiterTtlMs > 0 && { ahead: answer.ahead as number, askAgainMs: Number(answer.until) }
    return { granted: false, ...shown, ...place, answeredAtMs }
  })
}

async function acquireByForce([claim]: readonly Claim[], { call, relaxed }: AcquireContext): Promise<Answers> {
  const { lockName, claimId, holderId, ttlMs, forceUpTo } = claim as Claim
  const upTo = forceUpTo === Number.MAX_SAFE_INTEGER ? null : String(forceUpTo)
  const terms = [String(ttlMs), jsonOf(claim as Claim), relaxed, upTo]
  const row = await call('acquire_by_force', [lockName, claimId, holderId, ...terms])
  if (row['fencing_token'] === null) return [{ granted: false }]
  const [fencingToken, acquiredAtMs] = [Number(row['fencing_token']), Number(row['granted_at'])]
  return [{ granted: true, fencingToken, ttlMs, acquiredAtMs }]
}

const claimArrays = (claims: readonly Claim[]) => ({
  lockNames: textArray(claims.map(({ lockName }) => lockName)),
  claimIds: textArray(claims.map(({ claimId }) => claimId)),
  holderIds: textArray(claims.map(({ holderId }) => holderId)),
  ttls: numberArray(claims.map(({ ttlMs }) => ttlMs)),
  metadata: textArray(claims.map((claim) => jsonOf(claim) ?? undefined)),
})

const jsonOf = ({ metadata }: Claim): string | null => (metadata === undefined ? null : JSON.stringify(metadata))

/** A proxy or a broken server may answer anything. */
export function jsonIn<T extends object>(statement: string, text: unknown): T {
  try {
    return Object(JSON.parse(String(text))) as T
  } catch (error) {
    throw new StoreError(`PostgreSQL answered ${statement} with a text that is no JSON`, { cause: safeCause(error) })
  }
}
