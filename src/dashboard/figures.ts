import type { Happened } from './history.ts'
import { BUCKET_MS, type Bucket, HISTORY_MS } from './wire.ts'

/** One hour of figures of one store, in buckets of five seconds. */
export class Figures {
  readonly #buckets: Bucket[] = []

  all(): readonly Bucket[] {
    return this.#buckets
  }

  get last(): Bucket | undefined {
    return this.#buckets.at(-1)
  }

  add(nowMs: number, held: number, waiting: number, { granted, released, expired, broken }: Happened): void {
    const at = Math.floor(nowMs / BUCKET_MS) * BUCKET_MS
    const last = this.#buckets.at(-1)
    const isSame = last !== undefined && last[0] >= at
    const before: Bucket = isSame ? last : [at, 0, 0, 0, 0, 0, 0]
    const [from, , , grantedBefore, releasedBefore, expiredBefore, brokenBefore] = before
    const bucket: Bucket = [
      from,
      held,
      waiting,
      grantedBefore + granted,
      releasedBefore + released,
      expiredBefore + expired,
      brokenBefore + broken,
    ]
    if (isSame) this.#buckets[this.#buckets.length - 1] = bucket
    else this.#buckets.push(bucket)
    while (this.#buckets[0] !== undefined && this.#buckets[0][0] < at - HISTORY_MS) this.#buckets.shift()
  }
}
