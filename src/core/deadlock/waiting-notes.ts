import { chainIdOf, chainIdsOf } from '../claim/chain.ts'
import type { LeaseRecord } from '../driver.ts'
import { StoreError } from '../errors.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'

/**
 * What a claim that waits leaves in the store for those who find one of the leases around it: the lock name that it waits for.
 * One note for each of these leases, under a name that is made of the lease's own chain. So a look goes from a lease to what it waits
 * for with one question by name, which every store answers by its index. Without notes it would have to read all lock names.
 *
 * A note is a shared lease with a time to live. It is only a hint where to look: whether the claim still waits there, its queue says.
 */
export class Note {
  readonly #store: StoreClient
  readonly #inFlight: InFlight
  readonly #claims: readonly TrackedClaim[]
  readonly #onFailure: (error: unknown) => void
  #work = Promise.resolve()
  #written = false
  #refused = false
  #ended = false

  /** The link carries nothing but notes: a client without rights on their names is denied all that is in one list with them. */
  constructor(
    { store, inFlight, onFailure }: NoteParts,
    { lockName, claimId, holderId }: Pick<TrackedClaim, 'lockName' | 'claimId' | 'holderId'>,
  ) {
    this.#store = store
    this.#inFlight = inFlight
    this.#onFailure = onFailure
    this.#claims = chainsAround(claimId).map((chainId) => ({
      lockName: noteName(chainId),
      claimId: `${claimId}~${chainId.length.toString(36)}`,
      holderId,
      mode: 'shared',
      permits: 1,
      ttlMs: TTL_MS,
      metadata: { waitsFor: lockName },
      waitMs: 0,
      abandoned: false,
    }))
  }

  /** Writes it, or lets its time to live begin anew. A store that does not answer is the claim's own to tell of. */
  write(): void {
    if (this.#ended) return
    this.#written = true
    this.#then(() => Promise.all(this.#claims.map((claim) => this.#ask(claim))))
  }

  /** Takes it back, after whatever is under way: a release must not overtake what it is to undo. */
  end(): void {
    if (this.#ended) return
    this.#ended = true
    if (!this.#written) return
    this.#then(async () => {
      if (this.#refused) return
      await Promise.all(this.#claims.map((claim) => this.#store.withdraw(claim, () => undefined)))
    })
  }

  #then(work: () => Promise<unknown>): void {
    this.#work = this.#inFlight.track(this.#work.then(work).then(() => undefined))
  }

  #ask(claim: TrackedClaim): Promise<void> {
    return new Promise((resolve) => {
      const failed = (error: unknown): void => {
        this.#refused ||= error instanceof StoreError && !error.retryable
        this.#onFailure(error)
        resolve()
      }
      this.#store.acquire(claim, { answered: () => resolve(), failed })
    })
  }
}

export interface NoteParts {
  readonly store: StoreClient
  readonly inFlight: InFlight
  readonly onFailure: (error: unknown) => void
}

/** Where those who wait inside a lease's callback have left their notes. Undefined where nothing can be inside: another client's lease. */
export function notesOn({ claimId }: LeaseRecord): string | undefined {
  const chainId = chainIdOf(claimId)
  return chainId.includes('.') ? noteName(chainId) : undefined
}

/** Whether it is a note, and nobody's lock: for those who show what lies in a store. */
export const isNote = (lease: LeaseRecord): boolean =>
  lease.mode === 'shared' && lease.lockName.startsWith(NOTES) && waitsFor(lease) !== undefined

/** What a note says. */
export function waitsFor({ metadata }: LeaseRecord): string | undefined {
  const lockName = metadata?.['waitsFor']
  return typeof lockName === 'string' ? lockName : undefined
}

const noteName = (chainId: string): string => `${NOTES}${chainId}`
const NOTES = 'waits:'

/** The chains of all leases that the claim keeps while it waits. Its own is one of them if others are taken together with it. */
function chainsAround(claimId: string): string[] {
  return chainIdsOf(claimId).filter((id) => id.includes('.') && id !== claimId)
}

/** Longer than it takes a claim that waits long to look again, which writes it anew. */
const TTL_MS = 90_000
