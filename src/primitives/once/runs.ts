import type { Holder } from '../../core/claim/holder.ts'
import type { Metadata } from '../../core/driver.ts'
import { isOutage, StoreError } from '../../core/errors.ts'
import type { Lease } from '../../core/lease/lease.ts'
import type { LeaseUse } from '../../core/lease/lease-use.ts'
import { pause } from '../../core/time/abort.ts'
import { backoffMs } from '../../core/time/backoff.ts'
import type { Instance } from '../instance.ts'
import { throwIfLost } from '../lock/claims.ts'
import { unheld } from '../lock/forced-release-record.ts'
import { EXCLUSIVE, Reentry } from '../lock/reentry.ts'
import { type Boxed, boxed, type FoundResult } from './results.ts'

/** What a run receives: its fencing token, and whether it may go on. */
export type OnceRun = Pick<Lease, 'fencingToken' | 'signal' | 'held' | 'remainingSeconds' | 'assertHeld'>

/** A call whose turn it is to run the job. */
export interface Turn {
  readonly holder: Holder
  readonly lease: LeaseUse
  readonly key: string
  readonly done: string
  readonly forMs: number
  /** What the store keeps of a result. */
  readonly metadataOf: (result: Boxed<unknown>) => Metadata
}

/** The runs of one instance, each under a lease, and the records of those that are done. */
export class Runs {
  readonly reentry = new Reentry()
  readonly #instance: Instance

  constructor(instance: Instance) {
    this.#instance = instance
  }

  /** On the monotonic clock. */
  get nowMs(): number {
    return this.#instance.clock.now().monotonicMs
  }

  async find(holder: Holder, done: string): Promise<FoundResult | undefined> {
    const askedMs = this.nowMs
    const [record] = (await holder.inspect({ lockName: done })).leases
    return record && { record, metadata: record.metadata, askedMs }
  }

  /** Asks until the store answers, as long as the run's lease lasts. */
  async insist<T>(lease: LeaseUse, ask: () => Promise<T>): Promise<T> {
    const { clock, random } = this.#instance
    for (let tries = 1; ; tries += 1) {
      try {
        return await ask()
      } catch (error) {
        if (!isOutage(error)) throw error
        await pause(clock, backoffMs(RETRY, tries, random), lease.signal)
        if (!lease.held) throw error
      }
    }
  }

  /** Runs the job and records that it is done. `theirs`: a run that took over from this one was faster. */
  async run<T>(turn: Turn, fn: (run: OnceRun) => Promise<T> | T): Promise<Done<T>> {
    const { holder, lease, key, done, forMs, metadataOf } = turn
    const result = await this.reentry.run([lease], EXCLUSIVE, async () => boxed(fn(lease)))
    throwIfLost(lease)
    // The store decides. Otherwise a lease that was ended by force would go unnoticed until the next heartbeat, and the
    // result would be kept while another run is going on.
    const isInStore = await this.insist(lease, () => lease.lease.confirm()).catch(unknownOutcome(key))
    if (!isInStore) throwIfLost(lease)
    const metadata = metadataOf(result)
    // One claim for all tries: if an answer is lost, the next try gets the same lease.
    const claim = holder.createClaim(unheld(done, forMs, metadata))
    const askedMs = this.nowMs
    const answer = await this.insist(lease, () => holder.askOnce(claim)).catch(unknownOutcome(key))
    const theirs = answer.granted ? undefined : await this.insist(lease, () => this.find(holder, done))
    return { own: result.own, kept: { metadata, askedMs }, theirs }
  }
}

interface Done<T> {
  readonly own: T
  readonly kept: FoundResult
  readonly theirs: FoundResult | undefined
}

const unknownOutcome =
  (key: string) =>
  (cause: unknown): never => {
    throw new StoreError(`the job "${key}" ran, but whether its result is kept is not known`, { cause })
  }

const RETRY = { firstMs: 50, maxMs: 1_000 }
