import { checkHolderId, checkLockName, checkMetadata, checkText, checkWhole } from '../arguments.ts'
import type { Driver, Metadata } from '../driver.ts'
import { InvalidArgumentError, UnsupportedError } from '../errors.ts'
import { MAX_TTL_MS, MIN_TTL_MS } from '../limits.ts'
import { checkOptions, optionNames } from '../options.ts'
import type { TrackedClaim } from '../store/store-client.ts'

/** A lease on its way from one process to another. Nothing in it depends on the store. */
export interface HandOver {
  readonly lockName: string
  readonly claimId: string
  readonly fencingToken: number
  readonly holderId: string
  readonly acquiredAtMs: number
  /** A lower bound of the store's clock at the hand-over. */
  readonly storeAtMs: number
  readonly ttlMs: number
  readonly metadata?: Metadata
  /**
   * The shortest TTL that was sent and never answered. It may still reach the store, and then sets the lease to end
   * this long after its arrival.
   */
  readonly unansweredMs?: number
  /** What is left of `minHoldSeconds`. */
  readonly minHoldMs?: number
  /** What is left of `maxHoldSeconds`. */
  readonly maxHoldMs?: number
}

/** The prefix contains the version of the format: a text of another version is rejected, not guessed at. */
const PREFIX = 'holdfast-lease-1.'

/** A lease that is handed over. The times are those of the grant. */
interface Serializable {
  readonly claim: TrackedClaim
  readonly fencingToken: number
  readonly acquiredAtMs: number
  readonly storeAtMs: number
  readonly minHoldMs: number
  readonly maxHoldMs: number
  /** For how long it has been held. */
  readonly heldMs: number
  readonly unansweredMs: number
}

export function writeHandOver({ claim, heldMs, unansweredMs, ...lease }: Serializable): string {
  const { lockName, claimId, holderId, ttlMs, metadata } = claim
  const minHoldMs = lease.minHoldMs - heldMs
  const handOver: HandOver = {
    lockName,
    claimId,
    fencingToken: lease.fencingToken,
    holderId,
    acquiredAtMs: lease.acquiredAtMs,
    storeAtMs: lease.storeAtMs + heldMs,
    ttlMs,
    ...(metadata && { metadata }),
    ...(Number.isFinite(unansweredMs) && { unansweredMs }),
    ...(minHoldMs > 0 && { minHoldMs }),
    ...(Number.isFinite(lease.maxHoldMs) && { maxHoldMs: Math.max(0, lease.maxHoldMs - heldMs) }),
  }
  return `${PREFIX}${Buffer.from(JSON.stringify(handOver)).toString('base64url')}`
}

/**
 * @throws `InvalidArgumentError`, which contains no part of the text: the text is a secret, and a reader of a log could
 * end the lease with it
 */
export function readHandOver(text: unknown): HandOver {
  if (typeof text !== 'string' || !text.startsWith(PREFIX)) throw invalidText(text)
  try {
    const json = Buffer.from(text.slice(PREFIX.length), 'base64url').toString()
    return checked(JSON.parse(json) as HandOver)
  } catch {
    throw invalidText(text)
  }
}

function checked(lease: HandOver): HandOver {
  checkOptions(lease, NAMES)
  checkLockName(lease.lockName)
  checkText('claimId', lease.claimId, MAX_CLAIM_ID_LENGTH)
  checkHolderId(lease.holderId)
  checkWhole('fencingToken', lease.fencingToken, 1, Number.MAX_SAFE_INTEGER)
  checkWhole('ttlMs', lease.ttlMs, MIN_TTL_MS, MAX_TTL_MS)
  for (const name of ['acquiredAtMs', 'storeAtMs'] as const) checkMs(name, lease[name])
  for (const name of ['unansweredMs', 'minHoldMs', 'maxHoldMs'] as const) {
    if (lease[name] !== undefined) checkMs(name, lease[name])
  }
  return lease.metadata === undefined ? lease : { ...lease, metadata: checkMetadata(lease.metadata) }
}

function checkMs(argument: string, value: unknown): void {
  if (!(typeof value === 'number' && value >= 0 && value <= Number.MAX_SAFE_INTEGER)) {
    throw new InvalidArgumentError(argument, value, 'a number of ms')
  }
}

const NAMES = optionNames<HandOver>({
  lockName: true,
  claimId: true,
  fencingToken: true,
  holderId: true,
  acquiredAtMs: true,
  storeAtMs: true,
  ttlMs: true,
  metadata: true,
  unansweredMs: true,
  minHoldMs: true,
  maxHoldMs: true,
})

/** The ids that Holdfast creates are far shorter. */
const MAX_CLAIM_ID_LENGTH = 1_000

function invalidText(text: unknown): InvalidArgumentError {
  const found = typeof text === 'string' ? `a string of ${text.length} characters` : typeof text
  const rule = 'the result of lease.serialize(), from a version of Holdfast with the same format'
  return new InvalidArgumentError('text', found, rule, `text must be ${rule}, but is ${found} in another format`)
}

/** @throws `UnsupportedError` if a lease of this claim, with these uses, must stay here */
export function assertCanHandOver(driver: Driver, claim: TrackedClaim, uses: Uses): void {
  const reason = whyNot(driver, claim.mode, uses)
  if (reason !== undefined)
    throw new UnsupportedError(`the lease on "${claim.lockName}" cannot be handed over: ${reason}`)
}

interface Uses {
  /** Whether it has several uses. */
  readonly isShared: boolean
  /** Whether a function runs under the use that hands it over. */
  readonly runsFunction: boolean
}

function whyNot(driver: Driver, mode: TrackedClaim['mode'], { isShared, runsFunction }: Uses): string | undefined {
  if (driver.capabilities.expiry === 'session') {
    return `with the ${driver.name} driver a lease ends with its connection, which no other process can use`
  }
  if (mode === 'shared') return 'it is shared, and only an exclusive lease can be handed over'
  if (runsFunction) return 'a function runs under it, and releases it when it ends. Use `acquire` or `hold`'
  if (isShared) {
    return (
      'it has several uses. Use `acquire` or `hold` outside of the function that holds it, without ' +
      "`reacquire: 'extend'`"
    )
  }
  return undefined
}
