import type { LeaseRecord } from '../driver.ts'
import { StoreError } from '../errors.ts'
import { chainIdOf, chainIdsOf } from '../lease/chain.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'

/**
 * Marks in the store which lock name a claim waits for, so that a process that finds one of the leases around the claim
 * can follow it. There is one marker for each of these leases, under a name that contains the id of the lease's chain.
 * So it takes one request by name, which every store answers from an index, to get from a lease to what it waits for.
 * Without markers, all lock names would have to be read.
 *
 * A marker is a shared lease with a TTL. It is only a hint where to look: the queue of the lock name shows whether the
 * claim still waits there.
 */
export class WaitMarker {
  readonly #store: StoreClient
  readonly #inFlight: InFlight
  readonly #claims: readonly TrackedClaim[]
  readonly #onFailure: (error: unknown) => void
  #work = Promise.resolve()
  #written = false
  #refused = false
  #ended = false

  /**
   * `store` must send nothing but markers: if the client has no permission for their names, the store rejects
   * everything that is in one batch with them.
   */
  constructor(
    { store, inFlight, onFailure }: WaitMarkerParts,
    { lockName, claimId, holderId }: Pick<TrackedClaim, 'lockName' | 'claimId' | 'holderId'>,
  ) {
    this.#store = store
    this.#inFlight = inFlight
    this.#onFailure = onFailure
    this.#claims = chainsAround(claimId).map((chainId) => ({
      lockName: markerName(chainId),
      claimId: `${claimId}~${chainId.length.toString(36)}`,
      holderId,
      mode: 'shared',
      permits: 1,
      ttlMs: TTL_MS,
      metadata: { waitsFor: lockName },
      waiterTtlMs: 0,
      abandoned: false,
    }))
  }

  /** Writes the marker, or renews it. Errors go to `onFailure`. */
  write(): void {
    if (this.#ended) return
    this.#written = true
    this.#enqueue(() => Promise.all(this.#claims.map((claim) => this.#acquire(claim))))
  }

  /**
   * Removes the marker after the writes in flight have settled: a release must not overtake the write that it undoes.
   */
  end(): void {
    if (this.#ended) return
    this.#ended = true
    if (!this.#written) return
    this.#enqueue(async () => {
      if (this.#refused) return
      await Promise.all(this.#claims.map((claim) => this.#store.withdraw(claim, () => undefined)))
    })
  }

  #enqueue(work: () => Promise<unknown>): void {
    this.#work = this.#inFlight.track(this.#work.then(work).then(() => undefined))
  }

  #acquire(claim: TrackedClaim): Promise<void> {
    return new Promise((resolve) => {
      const failed = (error: unknown): void => {
        this.#refused ||= error instanceof StoreError && !error.retryable
        this.#onFailure(error)
        resolve()
      }
      this.#store.claims.ask(claim).then(() => resolve(), failed)
    })
  }
}

export interface WaitMarkerParts {
  readonly store: StoreClient
  readonly inFlight: InFlight
  readonly onFailure: (error: unknown) => void
}

/**
 * The name of the markers of the claims that wait inside the callback of a lease. Undefined for a lease of another
 * client, inside which Holdfast cannot know of claims.
 */
export function markerNameOf({ claimId }: LeaseRecord): string | undefined {
  const chainId = chainIdOf(claimId)
  return chainId.includes('.') ? markerName(chainId) : undefined
}

/** Whether a lease is a wait marker instead of a lock, for code that lists the leases of a store. */
export const isWaitMarker = (lease: LeaseRecord): boolean =>
  lease.mode === 'shared' && lease.lockName.startsWith(PREFIX) && waitsFor(lease) !== undefined

/** The lock name in a marker. */
export function waitsFor({ metadata }: LeaseRecord): string | undefined {
  const lockName = metadata?.['waitsFor']
  return typeof lockName === 'string' ? lockName : undefined
}

const markerName = (chainId: string): string => `${PREFIX}${chainId}`
const PREFIX = 'waits:'

/**
 * The chains of all leases that the claim keeps while it waits. Its own chain is one of them if other leases are
 * acquired together with it.
 */
function chainsAround(claimId: string): string[] {
  return chainIdsOf(claimId).filter((id) => id.includes('.') && id !== claimId)
}

/** Longer than the longest pause between two searches of a claim: each search writes the marker again. */
const TTL_MS = 90_000
