import type { LeaseRef } from '../driver.ts'
import type { Emitter } from '../events.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient } from '../store/store-client.ts'
import { type Clock, type Instant, isPast } from '../time/clock.ts'

/** A lease that has ended in this process and is to be released in the store. */
export interface Releasable {
  readonly ref: LeaseRef & { readonly fencingToken: number }
  readonly eventBase: { lockName: string; holderId: string; claimId: string; fencingToken: number }
  /** The store had ended the lease before the lease's own end. */
  lostBeforeRelease(): void
}

export interface ReleaseParts {
  readonly clock: Clock
  readonly store: StoreClient
  readonly events: Emitter
  readonly inFlight: InFlight
}

/** How long the lease was held, and until when it could be relied on. */
export interface HeldTime {
  readonly heldMs: number
  readonly deadline: Instant
}

/**
 * @returns whether the store still had the lease
 * @throws `StoreError` if the store did not answer; the release is then sent again in the background
 */
export function releaseNow(parts: ReleaseParts, lease: Releasable, held: HeldTime): Promise<boolean> {
  const { store, inFlight } = parts
  inFlight.begin()
  return new Promise((resolve, reject) => {
    store.release(lease.ref, {
      answered: (wasHeld, _sent, answered) => {
        if (wasHeld) emitReleased(parts, lease, held)
        else notInStore(parts, lease, held, answered)
        resolve(wasHeld)
        inFlight.end()
      },
      failed: (error) => {
        void inFlight.track(store.releaseUntilAnswered(lease.ref, (again) => emitReleaseFailed(parts, lease, again)))
        emitReleaseFailed(parts, lease, error)
        reject(error)
        inFlight.end()
      },
    })
  })
}

/**
 * Sets the lease to end after `delayMs`, for `minHoldSeconds`: the store then ends it even if this process no longer
 * exists. If that fails, the lease expires after its TTL.
 *
 * @param renewals settles when no renewal of the heartbeat is in flight: one that arrives later would set another end
 */
export async function releaseLater(
  parts: ReleaseParts,
  lease: Releasable,
  held: HeldTime,
  { delayMs, renewals }: { readonly delayMs: number; readonly renewals: Promise<unknown> | undefined },
): Promise<boolean> {
  const { store, clock } = parts
  await renewals
  try {
    const answer = await store.renew({ ...lease.ref, ttlMs: delayMs })
    if (answer === 'lost') {
      notInStore(parts, lease, held, clock.now())
      return false
    }
    // A store without expiry cannot end the lease itself: this process does it.
    if (answer === 'held') store.releaseLater(lease.ref, delayMs, (error) => emitReleaseFailed(parts, lease, error))
    emitReleased(parts, lease, held)
    return true
  } catch (error) {
    emitReleaseFailed(parts, lease, error)
    throw error
  }
}

/**
 * The store answered that it no longer had the lease. If the answer came before the lease's own end, the store had
 * ended the lease early, and another holder may have worked at the same time. A later answer proves nothing: the
 * release may have arrived after that end, when the work was already over.
 */
function notInStore(parts: ReleaseParts, lease: Releasable, held: HeldTime, answered: Instant): void {
  if (isPast(held.deadline, answered)) emitReleased(parts, lease, held)
  else lease.lostBeforeRelease()
}

function emitReleased({ events }: ReleaseParts, lease: Releasable, { heldMs }: HeldTime): void {
  events.emit('released', () => ({ ...lease.eventBase, heldMs }))
}

function emitReleaseFailed({ events }: ReleaseParts, lease: Releasable, error: unknown): void {
  events.emit('releaseFailed', () => ({ ...lease.eventBase, error }))
}
