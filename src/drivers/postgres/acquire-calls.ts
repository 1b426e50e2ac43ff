import type { AcquireAnswer, Claim, LeaseRecord, LeaseRef } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { safeCause } from '../../core/foreign-errors.ts'
import { leftOver } from '../shared/groups.ts'
import { booleanArray, numberArray, parseNumbers, parseTexts, textArray } from './arrays.ts'
import type { Row } from './connections.ts'
import { rowLocked } from './errors.ts'

/** The parameters of the statements, and their answers. The SQL in `protocol/postgres` says what each of them means. */

export function acquireValues(claims: readonly Claim[], channel: string, relaxed: string): string[] {
  const { lockNames, claimIds, holderIds, ttls, metadata } = claimArrays(claims)
  return [
    lockNames,
    claimIds,
    holderIds,
    booleanArray(claims.map(({ mode }) => mode === 'shared')),
    numberArray(claims.map(({ limit }) => limit)),
    numberArray(claims.map(({ permits }) => permits)),
    ttls,
    numberArray(claims.map(({ waitMs }) => waitMs)),
    metadata,
    channel,
    relaxed,
  ]
}

/** Whether `acquire_one` can be used for a claim. */
export const isOneLock = ({ mode, limit, permits }: Claim): boolean =>
  mode === 'exclusive' && limit === undefined && permits === 1

export function acquireOneValues(claim: Claim, channel: string, relaxed: string): (string | null)[] {
  const { lockName, claimId, holderId, ttlMs, waitMs, metadata } = claim
  const json = metadata === undefined ? null : JSON.stringify(metadata)
  return [lockName, claimId, holderId, String(ttlMs), String(waitMs), json, channel, relaxed]
}

export function acquireGroupsValues(claims: readonly Claim[], relaxed: string): string[] {
  const { lockNames, claimIds, holderIds, ttls, metadata } = claimArrays(claims)
  return [lockNames, claimIds, textArray(claims.map(({ group }) => group)), holderIds, ttls, metadata, relaxed]
}

const claimArrays = (claims: readonly Claim[]) => ({
  lockNames: textArray(claims.map(({ lockName }) => lockName)),
  claimIds: textArray(claims.map(({ claimId }) => claimId)),
  holderIds: textArray(claims.map(({ holderId }) => holderId)),
  ttls: numberArray(claims.map(({ ttlMs }) => ttlMs)),
  metadata: textArray(claims.map((claim) => claim.metadata && JSON.stringify(claim.metadata))),
})

/** The first parameters of `renew` and `release`. */
export const leaseArrays = (leases: readonly LeaseRef[]): string[] => [
  textArray(leases.map(({ lockName }) => lockName)),
  textArray(leases.map(({ claimId }) => claimId)),
  numberArray(leases.map(({ fencingToken }) => fencingToken)),
]

export function acquireAnswers(claims: readonly Claim[], row: Row): (AcquireAnswer | StoreError)[] {
  const { grantOf, refused, holders, answeredAtMs } = answersIn(row)
  const [ahead, until] = [numbersIn(row, 'refused_ahead'), numbersIn(row, 'refused_until')]
  return claims.map((claim) => {
    const { lockName, claimId, waitMs } = claim
    const grant = grantOf(claim)
    if (grant !== undefined) return grant
    const index = refused.get(claimId)
    if (index === undefined) return rowLocked(lockName)
    const holder = holders[lockName]
    // The claim itself, if it was handed the lock while the rest of the list was decided.
    const shown = holder === undefined || holder.claimId === claimId ? {} : { holder }
    if (waitMs === 0) return { granted: false, ...shown, answeredAtMs }
    const [aheadOf, askAgainMs] = [ahead[index] as number, until[index] as number]
    return { granted: false, ...shown, ahead: aheadOf, askAgainMs, answeredAtMs }
  })
}

export function acquireOneAnswer({ claimId, ttlMs, waitMs }: Claim, row: Row): AcquireAnswer {
  const answer = jsonIn<OneAnswer>('acquire_one', row['answer'])
  if ('fencingToken' in answer) {
    return { granted: true, fencingToken: answer.fencingToken, ttlMs, acquiredAtMs: answer.grantedAt }
  }
  const { refusedAt: answeredAtMs, ahead, until, holder } = answer
  const shown = holder === null || holder.claimId === claimId ? {} : { holder }
  if (waitMs === 0) return { granted: false, ...shown, answeredAtMs }
  // JSON has no infinity, so it comes as a text: a plain client's lease may have no end.
  return { granted: false, ...shown, ahead: ahead as number, askAgainMs: Number(until), answeredAtMs }
}

type OneAnswer =
  | { readonly fencingToken: number; readonly grantedAt: number }
  | {
      readonly refusedAt: number
      readonly ahead: number | null
      readonly until: number | string | null
      readonly holder: LeaseRecord | null
    }

export function acquireGroupsAnswers(claims: readonly Claim[], row: Row): (AcquireAnswer | StoreError)[] {
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

/** A proxy or a broken server may answer anything. */
export function jsonIn<T extends object>(statement: string, text: unknown): T {
  try {
    return Object(JSON.parse(String(text))) as T
  } catch (error) {
    throw new StoreError(`PostgreSQL answered ${statement} with a text that is no JSON`, { cause: safeCause(error) })
  }
}

interface Answers {
  grantOf(claim: Claim): AcquireAnswer | undefined
  /** The positions of the refused claims in the lists of the answer. */
  readonly refused: ReadonlyMap<string, number>
  readonly holders: Readonly<Record<string, LeaseRecord>>
  readonly answeredAtMs: number
}

function answersIn(row: Row): Answers {
  const granted = positionsIn(row, 'granted_claims')
  const [tokens, grantTimes] = [numbersIn(row, 'granted_tokens'), numbersIn(row, 'granted_at')]
  return {
    grantOf({ claimId, ttlMs }) {
      const index = granted.get(claimId)
      if (index === undefined) return undefined
      const [fencingToken, acquiredAtMs] = [tokens[index] as number, grantTimes[index] as number]
      return { granted: true, fencingToken, ttlMs, acquiredAtMs }
    },
    refused: positionsIn(row, 'refused_claims'),
    holders: JSON.parse((row['holders'] as string | null) ?? '{}') as Record<string, LeaseRecord>,
    answeredAtMs: Number(row['refused_at']),
  }
}

const textsIn = (row: Row, name: string): string[] => parseTexts(row[name] as string | null)

const numbersIn = (row: Row, name: string): number[] => parseNumbers(row[name] as string | null)

const positionsIn = (row: Row, name: string): ReadonlyMap<string, number> =>
  new Map(textsIn(row, name).map((claimId, index) => [claimId, index]))
