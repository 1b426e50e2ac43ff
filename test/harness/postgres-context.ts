import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Claim, Driver, Grant } from '../../src/core/driver.ts'
import { newCall } from '../../src/testing/conformance/driver-calls.ts'

/** A name that no other test has. */
export const unique = (what: string): string => `${what}:${randomBytes(6).toString('hex')}`

/** An exclusive claim for a minute. It does not wait by default. */
export function claimOn(lockName: string, waiterTtlMs = 0) {
  const claimId = unique('claim')
  return {
    lockName,
    claimId,
    holderId: 'test',
    mode: 'exclusive',
    permits: 1,
    ttlMs: 60_000,
    waiterTtlMs,
  } as const satisfies Claim
}

export async function granted(driver: Driver, claim: Claim): Promise<Grant> {
  const [answer] = await driver.acquire([claim], newCall())
  if (answer === undefined || !('granted' in answer) || !answer.granted) {
    throw new Error(`the claim on ${claim.lockName} was not granted: ${JSON.stringify(answer)}`)
  }
  return answer
}

/** The fencing token of a new claim. Undefined if it was refused. */
export async function grantOn(driver: Driver, lockName: string): Promise<number | undefined> {
  const [answer] = await driver.acquire([claimOn(lockName)], newCall())
  return answer && 'granted' in answer && answer.granted ? answer.fencingToken : undefined
}

export const leasesOn = async (driver: Driver, lockName: string) => (await driver.inspect({ lockName })).leases

export const waitersOn = async (driver: Driver, lockName: string) => (await driver.inspect({ lockName })).waiters.length

/** Polls until `look` returns something, and returns that. */
export async function until<T>(what: string, look: () => T | Promise<T>, withinMs = 30_000): Promise<NonNullable<T>> {
  const startedMs = performance.now()
  for (;;) {
    const seen = await look()
    if (seen) return seen
    if (performance.now() - startedMs > withinMs) throw new Error(`waited too long for ${what}`)
    await sleep(10)
  }
}
