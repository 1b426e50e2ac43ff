import assert from 'node:assert/strict'
import type {
  AcquireAnswer,
  AcquireCall,
  Claim,
  Driver,
  Grant,
  LeaseRecord,
  LeaseRef,
  RateAnswer,
  RateRequest,
  Refusal,
  RenewAnswer,
  WaiterRecord,
} from '../../core/driver.ts'
import { readPages } from '../../core/pages.ts'
import { systemRandom } from '../../core/time/random.ts'
import { until } from './timing.ts'

// Calls with one request each, whose answer is taken out of its list of one.

/** The second argument of a call of `acquire`. */
export const newCall = (): AcquireCall => ({ secret: systemRandom.id() })

export const acquireOne = async (driver: Driver, claim: Claim, call = newCall()): Promise<AcquireAnswer> =>
  only(await driver.acquire([claim], call))

export async function mustGrant(driver: Driver, claim: Claim): Promise<Grant> {
  const answer = await acquireOne(driver, claim)
  assert.ok(answer.granted, `${claim.claimId} should have been granted "${claim.lockName}": ${JSON.stringify(answer)}`)
  return answer
}

export async function mustRefuse(driver: Driver, claim: Claim, call?: AcquireCall): Promise<Refusal> {
  const answer = await acquireOne(driver, claim, call)
  assert.ok(!answer.granted, `${claim.claimId} should have been refused "${claim.lockName}"`)
  return answer
}

/** Asks repeatedly, for a claim that must be granted once a lease or a place in the queue has expired. */
export const untilGranted = (driver: Driver, claim: Claim): Promise<Grant> =>
  until(`a grant of "${claim.lockName}" to ${claim.claimId}`, async () => {
    const answer = await acquireOne(driver, claim)
    return answer.granted ? answer : undefined
  })

export const renewOne = async (
  driver: Driver,
  claim: Claim,
  fencingToken: number,
  ttlMs: number,
): Promise<RenewAnswer> => only(await driver.renew([{ ...refOf(claim, fencingToken), ttlMs }]))

/** Over how many calls the requests about these names are spread: one, unless the store has several parts. */
export const callsFor = ({ extensions }: Driver, lockNames: readonly string[]): number =>
  new Set(lockNames.map((lockName) => extensions?.partOf?.(lockName))).size

/** Without a token it withdraws the claim. */
export const releaseOne = async (driver: Driver, claim: Claim, fencingToken?: number): Promise<boolean> =>
  only(await driver.release([refOf(claim, fencingToken)]))

export async function consumeOne(driver: Driver, request: RateRequest): Promise<RateAnswer> {
  assert.ok(driver.consume, 'a driver whose capabilities say `rate` has `consume`')
  return only(await driver.consume([request]))
}

export const leasesOn = async (driver: Driver, lockName: string): Promise<readonly LeaseRecord[]> =>
  (await readPages((query) => driver.inspect(query), { lockName })).leases

export const waitersOn = async (driver: Driver, lockName: string): Promise<readonly WaiterRecord[]> =>
  (await readPages((query) => driver.inspect(query), { lockName })).waiters

/** The one lease on a name. */
export async function leaseOn(driver: Driver, lockName: string): Promise<LeaseRecord> {
  const leases = await leasesOn(driver, lockName)
  assert.equal(leases.length, 1, `one lease on "${lockName}": ${JSON.stringify(leases)}`)
  return leases[0] as LeaseRecord
}

/**
 * Asserts that the lease is unchanged. A store may derive its end from the remaining time, so two reads may differ by a
 * millisecond.
 */
export async function assertUntouched(driver: Driver, before: LeaseRecord): Promise<void> {
  const after = await leaseOn(driver, before.lockName)
  const movedMs = (after.expiresAtMs ?? 0) - (before.expiresAtMs ?? 0)
  assert.ok(Math.abs(movedMs) <= 2, `its end was moved by ${movedMs} ms`)
  assert.deepEqual({ ...after, expiresAtMs: 0 }, { ...before, expiresAtMs: 0 })
}

/** Without a token it refers to any lease or place in the queue of the claim. */
export function refOf(claim: Claim, fencingToken: number): LeaseRef & { readonly fencingToken: number }
export function refOf(claim: Claim, fencingToken?: number): LeaseRef
export function refOf({ lockName, claimId }: Claim, fencingToken?: number): LeaseRef {
  return { lockName, claimId, ...(fencingToken !== undefined && { fencingToken }) }
}

/** The only entry of an answer, which must not be an error. */
export function only<Answer>(answers: readonly (Answer | Error)[]): Answer {
  assert.equal(answers.length, 1, 'a list of one is answered by a list of one')
  return unwrap(answers[0] as Answer | Error)
}

export function unwrap<Answer>(answer: Answer | Error): Answer {
  if (answer instanceof Error) throw answer
  return answer
}
