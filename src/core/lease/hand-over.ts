import { checkMetadata, checkWhole } from '../arguments.ts'
import type { Metadata } from '../driver.ts'
import { InvalidArgumentError, OverloadError } from '../errors.ts'
import { MAX_TTL_MS, MAX_UNANSWERED_RESTORES, MIN_TTL_MS } from '../limits.ts'
import { checkHolderId, checkLockName, checkText } from '../names.ts'
import { checkOptions, optionNames } from '../options.ts'

/** A lease on its way from one process to another. Nothing in it depends on the store. */
export interface HandOver {
  readonly lockName: string
  readonly claimId: string
  readonly fencingToken: number
  readonly holderId: string
  readonly acquiredAtMs: number
  /** What the store's clock showed at least when it was handed over. */
  readonly storeAtMs: number
  readonly ttlMs: number
  readonly metadata?: Metadata
  /** The shortest renewal that was sent and never answered: it may still reach the store, and set the lease's end to that. */
  readonly unansweredMs?: number
  /** What is left of `minHoldSeconds` and of `maxHoldSeconds`. */
  readonly minHoldMs?: number
  readonly maxHoldMs?: number
}

/** With the version of what follows: a text of another one is refused, not guessed at. */
const BEGINNING = 'holdfast-lease-1.'

export const writeHandOver = (lease: HandOver): string =>
  `${BEGINNING}${Buffer.from(JSON.stringify(lease)).toString('base64url')}`

/**
 * Throws `InvalidArgumentError`, which does not have the text or a part of it: whoever reads a log could end the lease.
 */
export function readHandOver(text: unknown): HandOver {
  if (typeof text !== 'string' || !text.startsWith(BEGINNING)) throw notOurs(text)
  try {
    const json = Buffer.from(text.slice(BEGINNING.length), 'base64url').toString()
    return checked(JSON.parse(json) as HandOver)
  } catch {
    throw notOurs(text)
  }
}

function checked(lease: HandOver): HandOver {
  checkOptions(lease, NAMES)
  checkLockName(lease.lockName)
  checkText('claimId', lease.claimId, MAX_CLAIM_ID)
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

/** Ours are far shorter. */
const MAX_CLAIM_ID = 1_000

function notOurs(text: unknown): InvalidArgumentError {
  const found = typeof text === 'string' ? `a string of ${text.length} characters` : typeof text
  const rule = 'the text of lease.serialize(), by a version of Holdfast that writes the same format'
  return new InvalidArgumentError('text', found, rule, `text must be ${rule}, but is ${found} that is not`)
}

/**
 * The restores of one instance. A second one for the same lease must not even be sent: it would set the lease's end to
 * another moment than the first one relies on. And one that was never answered may arrive after the next one was.
 */
export class Restores {
  readonly #inFlight = new Set<string>()
  /** For each claim, the shortest of them. */
  readonly #unanswered = new Map<string, number>()

  /** Throws `InvalidArgumentError`, `OverloadError`. Ends with `end`. */
  begin(claimId: string): void {
    if (this.#inFlight.has(claimId)) throw restoredTwice()
    if (!this.#unanswered.has(claimId) && this.#unanswered.size >= MAX_UNANSWERED_RESTORES) {
      throw new OverloadError(`${MAX_UNANSWERED_RESTORES} restores of this instance were never answered`)
    }
    this.#inFlight.add(claimId)
  }

  end(claimId: string): void {
    this.#inFlight.delete(claimId)
  }

  unanswered(claimId: string, ttlMs: number): void {
    this.#unanswered.set(claimId, Math.min(this.unansweredMs(claimId), ttlMs))
  }

  unansweredMs(claimId: string): number {
    return this.#unanswered.get(claimId) ?? Number.POSITIVE_INFINITY
  }

  /** The store has the lease no more, or a lease of this instance knows of it from now on. */
  forget(claimId: string): void {
    this.#unanswered.delete(claimId)
  }
}

export function restoredTwice(): InvalidArgumentError {
  const rule = 'restored once: this instance holds the lease already, or is just restoring it'
  return new InvalidArgumentError('text', undefined, rule, `text must be ${rule}`)
}
