import type { Instant } from '../time/clock.ts'

/** Where the deadline of one lease lies in memory that two threads share. */
export interface Slot {
  readonly page: BigInt64Array
  readonly index: number
}

/** Hands out slots, in pages, and takes them back. */
export class SlotBook {
  readonly #free: Slot[] = []

  take(deadline: Instant): Slot {
    if (this.#free.length === 0) this.#addPage()
    const slot = this.#free.pop() as Slot
    publishDeadline(slot, deadline)
    return slot
  }

  giveBack(slot: Slot): void {
    this.#free.push(slot)
  }

  #addPage(): void {
    const page = new BigInt64Array(new SharedArrayBuffer(PAGE_SLOTS * 16))
    for (let index = 0; index < page.length; index += 2) this.#free.push({ page, index })
  }
}

/** Rounded down to whole microseconds: never later than what is trusted. */
export function publishDeadline({ page, index }: Slot, { monotonicMs, wallMs }: Instant): void {
  Atomics.store(page, index, BigInt(Math.floor(monotonicMs * 1_000)))
  Atomics.store(page, index + 1, BigInt(Math.floor(wallMs * 1_000)))
}

/**
 * A reader may see one clock's new deadline beside the other's old one. That is harmless: a lease is past as soon as either
 * is, and each of the four values was true of its own clock.
 */
export const deadlineIn = ({ page, index }: Slot): Instant => ({
  monotonicMs: Number(Atomics.load(page, index)) / 1_000,
  wallMs: Number(Atomics.load(page, index + 1)) / 1_000,
})

const PAGE_SLOTS = 256
