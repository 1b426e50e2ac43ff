import type { AcquireAnswer } from '../driver.ts'
import { StoreError } from '../errors.ts'
import type { InFlight } from '../store/in-flight.ts'
import type { StoreClient, TrackedClaim } from '../store/store-client.ts'

/**
 * Acquires and releases `claim`, whose lock name must be new. Success proves that the store is reachable, has what the
 * driver needs, and accepts writes. Nothing is retried, and no event is emitted.
 *
 * @throws `StoreError` and every other error that the driver reports. The claim is then withdrawn in the background.
 */
export async function ping(store: StoreClient, claim: TrackedClaim, inFlight: InFlight): Promise<void> {
  const { name } = store.driver
  try {
    const answer = await new Promise<AcquireAnswer>((answered, failed) => store.acquire(claim, { answered, failed }))
    if (!answer.granted) throw new StoreError(`the ${name} store refused a claim on an unused lock name`)
    const lease = { lockName: claim.lockName, claimId: claim.claimId, fencingToken: answer.fencingToken }
    const wasHeld = await new Promise<boolean>((answered, failed) => store.release(lease, { answered, failed }))
    if (!wasHeld) throw new StoreError(`the ${name} store lost a lease that it had just granted`)
  } catch (error) {
    // A permanent failure, such as a wrong password, has written nothing.
    const mayBeStored = !(error instanceof StoreError) || error.retryable
    if (mayBeStored) void inFlight.track(store.withdraw(claim, () => undefined))
    throw error
  }
}
