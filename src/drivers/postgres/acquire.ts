import type { AcquireAnswer, Claim, LeaseRecord, Refusal } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import { leftOver } from '../shared/groups.ts'
import { booleanArray, numberArray, parseNumbers, parseTexts, textArray } from './arrays.ts'
import type { Row } from './connections.ts'
import { rowLocked } from './errors.ts'
import type { CallName } from './statements.ts'

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
  if (start === -1) return acquirePlain(claims, context)
  const { forceUpTo } = claims[start] as Claim
  const length = forceUpTo !== undefined ? 1 : claims.slice(start).findIndex(({ group }) => group === undefined)
  const end = length === -1 ? claims.length : start + length
  const part = async (from: number, to: number, send: typeof acquire): Promise<Answers> => {
    const of = claims.slice(from, to)
    return send(of, context).catch((error: Error) => of.map(() => error))
  }
  return [
    ...(await part(0, start, acquirePlain)),
    ...(await part(start, end, forceUpTo === undefined ? acquireGroups : acquireByForce)),
    ...(await part(end, claims.length, acquire)),
  ]
}

async function acquirePlain(claims: readonly Claim[], { call, address, relaxed }: AcquireContext): Promise<Answers> {
  const [claim] = claims
  if (claim === undefined) return []
  const to = claims.some(({ waiterTtlMs }) => waiterTtlMs > 0) ? address : ''
  if (claims.length > 1 || !isOneLock(claim)) {
    return listAnswers(claims, await call('acquire', listValues(claims, to, relaxed)))
  }
  const { lockName, claimId, holderId, ttlMs, waiterTtlMs } = claim
  const terms = [String(ttlMs), String(waiterTtlMs), jsonOf(claim), to, relaxed]
  return [oneAnswer(claim, await call('acquire_one', [lockName, claimId, holderId, ...terms]))]
}

/** Whether `acquire_one` can be used for a claim. */
const isOneLock = ({ mode, limit, permits }: Claim): boolean =>
  mode === 'exclusive' && limit === undefined && permits === 1

function oneAnswer(claim: Claim, row: Row): AcquireAnswer {
  const answer = jsonIn<OneAnswer>('acquire_one', row['answer'])
  if ('fencingToken' in answer) {
    return { granted: true, fencingToken: answer.fencingToken, ttlMs: claim.ttlMs, acquiredAtMs: answer.grantedAt }
  }
  const { refusedAt, holder, ahead, until } = answer
  // JSON has no infinity, so it comes as a text: a plain client's lease may have no end.
  return refusal(claim, refusedAt, holder ?? undefined, ahead as number, Number(until))
}

function refusal(
  { claimId, waiterTtlMs }: Claim,
  answeredAtMs: number,
  holder: LeaseRecord | undefined,
  ahead: number,
  askAgainMs: number,
): Refusal {
  // The holder is the claim itself, if it was handed the lock while the rest of a list was decided.
  const shown = holder === undefined || holder.claimId === claimId ? {} : { holder }
  return { granted: false, ...shown, ...(waiterTtlMs > 0 && { ahead, askAgainMs }), answeredAtMs }
}

type OneAnswer =
  | { readonly fencingToken: number; readonly grantedAt: number }
  | {
      readonly refusedAt: number
      readonly ahead: number | null
      readonly until: number | string | null
      readonly holder: LeaseRecord | null
    }

export function listValues(claims: readonly Claim[], address: string, relaxed: string): string[] {
  const { lockNames, claimIds, holderIds, ttls, metadata } = claimArrays(claims)
  const modes = booleanArray(claims.map(({ mode }) => mode === 'shared'))
  const limits = numberArray(claims.map(({ limit }) => limit))
  const permits = numberArray(claims.map((claim) => claim.permits))
  const waiterTtls = numberArray(claims.map(({ waiterTtlMs }) => waiterTtlMs))
  return [lockNames, claimIds, holderIds, modes, limits, permits, ttls, waiterTtls, metadata, address, relaxed]
}

export function listAnswers(claims: readonly Claim[], row: Row): (AcquireAnswer | StoreError)[] {
  const { grantOf, refused, holders, answeredAtMs } = answersIn(row)
  const [ahead, until] = [numbersIn(row, 'refused_ahead'), numbersIn(row, 'refused_until')]
  return claims.map((claim) => {
    const { lockName, claimId } = claim
    const grant = grantOf(claim)
    if (grant !== undefined) return grant
    const index = refused.get(claimId)
    if (index === undefined) return rowLocked(lockName)
    return refusal(claim, answeredAtMs, holders[lockName], ahead[index] as number, until[index] as number)
  })
}

async function acquireGroups(claims: readonly Claim[], { call, relaxed }: AcquireContext): Promise<Answers> {
  const { lockNames, claimIds, holderIds, ttls, metadata } = claimArrays(claims)
  const groups = textArray(claims.map(({ group }) => group))
  const row = await call('acquire_groups', [lockNames, claimIds, groups, holderIds, ttls, metadata, relaxed])
  const { grantOf, refused, holders, answeredAtMs } = answersIn(row)
  const notKnown = new Set(textsIn(row, 'not_known'))
  const refusedGroups = new Set(claims.filter(({ claimId }) => refused.has(claimId)).map(({ group }) => group))
  return claims.map((claim) => {
    const { lockName, claimId, group } = claim
    const grant = grantOf(claim)
    if (grant !== undefined) return grant
    const holder = holders[lockName]
    if (refused.has(claimId)) return { granted: false, ...(holder && { holder }), answeredAtMs }
    if (!refusedGroups.has(group)) return rowLocked(lockName)
    return notKnown.has(claimId) ? leftOver(lockName) : { granted: false, free: true, answeredAtMs }
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

function answersIn(row: Row) {
  const granted = positionsIn(row, 'granted_claims')
  const [tokens, grantTimes] = [numbersIn(row, 'granted_tokens'), numbersIn(row, 'granted_at')]
  return {
    grantOf({ claimId, ttlMs }: Claim): AcquireAnswer | undefined {
      const index = granted.get(claimId)
      if (index === undefined) return undefined
      const [fencingToken, acquiredAtMs] = [tokens[index] as number, grantTimes[index] as number]
      return { granted: true, fencingToken, ttlMs, acquiredAtMs }
    },
    /** The positions of the refused claims in the lists of the answer. */
    refused: positionsIn(row, 'refused_claims'),
    holders: JSON.parse((row['holders'] as string | null) ?? '{}') as Partial<Record<string, LeaseRecord>>,
    answeredAtMs: Number(row['refused_at']),
  }
}

const textsIn = (row: Row, name: string): string[] => parseTexts(row[name] as string | null)

const numbersIn = (row: Row, name: string): number[] => parseNumbers(row[name] as string | null)

const positionsIn = (row: Row, name: string): ReadonlyMap<string, number> =>
  new Map(textsIn(row, name).map((claimId, index) => [claimId, index]))
