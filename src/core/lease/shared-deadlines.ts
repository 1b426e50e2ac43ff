import type { Instant } from '../time/clock.ts'
import { DRIVER_FAILED, type Loss, NOT_IN_STORE, NOT_RENEWED } from './renewer.ts'

/** Where the deadline of one lease is kept in memory that two threads share. */
export interface Slot {
  readonly page: BigInt64Array
  readonly index: number
}

/** Allocates slots from pages of shared memory, and reuses those that were freed. */
export class SlotPool {
  readonly #free: Slot[] = []

  allocate(deadline: Instant): Slot {
    if (this.#free.length === 0) this.#addPage()
    const slot = this.#free.pop() as Slot
    publishDeadline(slot, deadline)
    return slot
  }

  free(slot: Slot): void {
    this.#free.push(slot)
  }

  #addPage(): void {
    const page = new BigInt64Array(new SharedArrayBuffer(SLOTS_PER_PAGE * BYTES_PER_SLOT))
    for (let index = 0; index < page.length; index += 2) this.#free.push({ page, index })
  }
}

/** Rounds down to microseconds, so that the published deadline is never later than the real one. */
export function publishDeadline({ page, index }: Slot, { monotonicMs, wallMs }: Instant): void {
  Atomics.store(page, index, BigInt(Math.floor(monotonicMs * 1_000)))
  Atomics.store(page, index + 1, BigInt(Math.floor(wallMs * 1_000)))
}

/**
 * A reader may see the new deadline of one clock next to the old deadline of the other clock. That is harmless: a lease
 * has ended as soon as one of the two is past, and each of the four values was correct for its own clock.
 */
export const readDeadline = ({ page, index }: Slot): Instant => ({
  monotonicMs: Number(Atomics.load(page, index)) / 1_000,
  wallMs: Number(Atomics.load(page, index + 1)) / 1_000,
})

/** The lease is lost. The main thread reads this at once, before any message arrives: also why. */
export function publishLoss(slot: Slot, { kind }: Loss): void {
  publishDeadline(slot, { monotonicMs: -1 - LOSSES.findIndex((each) => each.kind === kind), wallMs: 0 })
}

export const lossOf = ({ monotonicMs }: Instant): Loss => LOSSES[-1 - monotonicMs] ?? NOT_RENEWED

const LOSSES = [NOT_RENEWED, NOT_IN_STORE, DRIVER_FAILED]

const SLOTS_PER_PAGE = 256
/** Two 64-bit numbers: one for the monotonic clock, one for the wall clock. */
const BYTES_PER_SLOT = 16
