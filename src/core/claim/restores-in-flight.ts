import { InvalidArgumentError, OverloadError } from '../errors.ts'
import { MAX_UNANSWERED_RESTORES } from '../limits.ts'

/**
 * The restores of one instance. Two restores of the same lease must not even be sent: the second one would set the
 * lease to another end than the one that the first one relies on. A restore that was never answered may arrive after
 * the next one was answered.
 */
export class Restores {
  readonly #inFlight = new Set<string>()
  /** For each claim, the shortest TTL that was never answered. */
  readonly #unanswered = new Map<string, number>()

  /**
   * Call `end` when the restore has settled.
   *
   * @throws `InvalidArgumentError` while the same lease is being restored
   * @throws `OverloadError` if too many restores were never answered
   */
  begin(claimId: string): void {
    if (this.#inFlight.has(claimId)) throw restoredTwice()
    if (!this.#unanswered.has(claimId) && this.#unanswered.size >= MAX_UNANSWERED_RESTORES) {
      throw new OverloadError(
        `the store never answered ${MAX_UNANSWERED_RESTORES} restores of this instance: repeat those first`,
      )
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

  /** Call it when the store no longer has the lease, or when a lease of this instance has taken over `unansweredMs`. */
  forget(claimId: string): void {
    this.#unanswered.delete(claimId)
  }
}

export function restoredTwice(): InvalidArgumentError {
  const rule = 'restored only once: this instance already holds the lease or is restoring it'
  return new InvalidArgumentError('text', undefined, rule, `text must be ${rule}`)
}
