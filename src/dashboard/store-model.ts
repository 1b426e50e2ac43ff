import type { LeaseRecord } from '../core/driver.ts'
import { detailOf } from './detail.ts'
import { type Happened, History } from './history.ts'
import { type Reading, type StoreView, viewOf } from './lock-view.ts'
import { changeOf, rowOf } from './rows.ts'
import { waitGraphOf } from './wait-graph.ts'
import {
  BUCKET_MS,
  type Bucket,
  HISTORY_MS,
  type LockDetail,
  type Row,
  type Step,
  type StoreInfo,
  type WaitGraph,
} from './wire.ts'

/** What is known of one store: the last reading, what changed with it, and one hour of history. */
export class StoreModel {
  readonly #store: number
  readonly #isElection: (lease: LeaseRecord) => boolean
  readonly #history = new History()
  readonly #figures = new Figures()
  #rows = new Map<string, Row>()
  #view: StoreView = viewOf(NOTHING)
  readonly #baseMs: number
  #isRead = false
  #nextId = 1
  #error: string | undefined

  constructor({ store, baseMs, isElection }: StoreModelParts) {
    this.#store = store
    this.#baseMs = Math.floor(baseMs)
    this.#isElection = isElection
  }

  /** False before the first reading. */
  get isRead(): boolean {
    return this.#isRead
  }

  /** Takes a reading, and returns what has changed. `gapMs`: see `History.record`. */
  apply(reading: Reading, gapMs: number): Step {
    this.#error = undefined
    this.#isRead = true
    const view = viewOf(reading)
    this.#view = view
    const before = this.#rows
    const after = new Map<string, Row>()
    const rows: Row[] = []
    const ends: number[] = []
    for (const lock of view.locks.values()) {
      const known = before.get(lock.name)
      const row = rowOf(lock, {
        id: known?.[0] ?? this.#nextId++,
        baseMs: this.#baseMs,
        isDeadlocked: view.deadlocked.has(lock.name),
        isElection: this.#isElection,
      })
      const change = known === undefined ? 'row' : changeOf(known, row)
      // The same object is kept: most of 10,000 rows do not change in a step.
      after.set(lock.name, change === 'none' && known !== undefined ? known : row)
      if (change === 'row') rows.push(row)
      else if (change === 'end') ends.push(row[0], row[8])
    }
    const gone: number[] = []
    for (const [name, [id]] of before) if (!after.has(name)) gone.push(id)
    this.#rows = after
    // A reading that is not complete misses leases, which would look as if they had ended.
    if (reading.complete) this.#record(view, gapMs)
    const figures = this.#figures.last
    return {
      ...this.#head(),
      ...(rows.length > 0 && { rows }),
      ...(ends.length > 0 && { ends }),
      ...(gone.length > 0 && { gone }),
      ...(figures && { figures }),
    }
  }

  /** The store could not be read. What was read before is kept. */
  fail(error: string, nowMs: number): Step {
    this.#error = error
    return { ...this.#head(), now: nowMs }
  }

  /** Everything, for a viewer that has just come, or could not keep up. */
  full(info: StoreInfo): Step {
    return {
      ...this.#head(),
      full: { base: this.#baseMs, info, history: this.#figures.all() },
      rows: [...this.#rows.values()],
    }
  }

  detail(name: string): LockDetail {
    return detailOf(name, this.#view, this.#history)
  }

  waits(): WaitGraph {
    return waitGraphOf(this.#view)
  }

  #record(view: StoreView, gapMs: number): void {
    const happened = this.#history.record(view, gapMs)
    let held = 0
    for (const { leases } of view.locks.values()) if (leases.length > 0) held += 1
    this.#figures.add(view.reading.nowMs, held, view.reading.waiters.length, happened)
  }

  #head(): Step {
    const { nowMs, complete } = this.#view.reading
    return {
      store: this.#store,
      now: nowMs,
      ...(this.#error !== undefined && { error: this.#error }),
      ...(!complete && { partial: true as const }),
    }
  }
}

export interface StoreModelParts {
  /** Its index. */
  readonly store: number
  /** What the times of rows are relative to. */
  readonly baseMs: number
  isElection(this: void, lease: LeaseRecord): boolean
}

const NOTHING: Reading = { leases: [], waiters: [], complete: true, nowMs: 0 }

/** One hour of figures of one store, in buckets of five seconds. */
class Figures {
  readonly #buckets: Bucket[] = []

  all(): readonly Bucket[] {
    return this.#buckets
  }

  get last(): Bucket | undefined {
    return this.#buckets.at(-1)
  }

  add(nowMs: number, held: number, waiting: number, { granted, released, expired, forceReleased }: Happened): void {
    const at = Math.floor(nowMs / BUCKET_MS) * BUCKET_MS
    const last = this.#buckets.at(-1)
    const isSame = last !== undefined && last[0] >= at
    const before: Bucket = isSame ? last : [at, 0, 0, 0, 0, 0, 0]
    const [from, , , grantedBefore, releasedBefore, expiredBefore, forceReleasedBefore] = before
    const bucket: Bucket = [
      from,
      held,
      waiting,
      grantedBefore + granted,
      releasedBefore + released,
      expiredBefore + expired,
      forceReleasedBefore + forceReleased,
    ]
    if (isSame) this.#buckets[this.#buckets.length - 1] = bucket
    else this.#buckets.push(bucket)
    while (this.#buckets[0] !== undefined && this.#buckets[0][0] < at - HISTORY_MS) this.#buckets.shift()
  }
}
