import { MAX_SLEEP_MS } from '../limits.ts'
import type { Clock, Instant, Timer } from './clock.ts'
import type { Random } from './random.ts'

/** Something that has to run at a certain time. */
export interface Task {
  /**
   * Decides what is due. It may be called too early. `now` is when the scheduler began to run the tasks that are due,
   * and so may be a little in the past.
   */
  due(now: Instant): void
  /** A waiting claim keeps the process alive. A lease that is only held does not. */
  readonly keepsAlive: boolean
  /** Belongs to the scheduler. It is stored here because a lookup would cost more than everything else. */
  schedulerEntry?: SchedulerEntry | undefined
}

export interface SchedulerEntry {
  readonly task: Task
  atMs: number
  /** Of two tasks with the same time, the one that was set first runs first. */
  order: number
  index: number
}

/**
 * Runs any number of tasks with one timer. It is a binary heap, so that 10,000 leases need one timer, and a renewal a
 * dozen comparisons.
 *
 * While it has tasks, its timer fires at least once a second, and it compares the two clocks. The monotonic clock does
 * not advance while the machine is suspended. Without the comparison, no timer would fire in time after that to report
 * that the leases have expired.
 */
export class Scheduler {
  readonly #clock: Clock
  /** Random offset of this scheduler's grid (see `round`), so that the grids of many processes do not coincide. */
  readonly #phase: number
  readonly #heap: SchedulerEntry[] = []
  #timer: Timer | undefined
  #timerAtMs = Number.POSITIVE_INFINITY
  #timerKeepsAlive = false
  #keepAlives = 0
  #sequence = 0
  #wallOffsetMs = 0
  /** When it began to run the tasks that are due. Undefined while it runs none. */
  #tickMs: number | undefined

  constructor(clock: Clock, random: Random) {
    this.#clock = clock
    this.#phase = random.fraction()
  }

  get size(): number {
    return this.#heap.length
  }

  /**
   * Rounds a time down to a grid of `stepMs`. Tasks that may run a little early use it, so that similar tasks run at
   * the same time and their requests go to the store in one list.
   */
  round(atMs: number, stepMs: number): number {
    const phaseMs = this.#phase * stepMs
    return Math.floor((atMs - phaseMs) / stepMs) * stepMs + phaseMs
  }

  /** Runs the task at `wantedMs` on the monotonic clock. Replaces the time that was set before. */
  set(task: Task, wantedMs: number): void {
    const existing = task.schedulerEntry
    // A task that is due again at once runs in the next turn, so that it cannot block the loop over the tasks.
    const atMs = this.#tickMs === undefined ? wantedMs : Math.max(wantedMs, this.#tickMs + SHORTEST_MS)
    this.#sequence += 1
    if (existing === undefined) {
      if (this.#heap.length === 0) this.#wallOffsetMs = this.#readWallOffset()
      const entry = { task, atMs, order: this.#sequence, index: this.#heap.length }
      task.schedulerEntry = entry
      this.#heap.push(entry)
      this.#moveTo(entry.index, entry)
      if (task.keepsAlive) this.#keepAlives += 1
    } else {
      existing.atMs = atMs
      existing.order = this.#sequence
      this.#moveTo(existing.index, existing)
    }
    this.#arm()
  }

  clear(task: Task): void {
    const entry = task.schedulerEntry
    if (entry === undefined) return
    task.schedulerEntry = undefined
    if (task.keepsAlive) this.#keepAlives -= 1
    const last = this.#heap.pop()
    if (last !== undefined && last !== entry) this.#moveTo(entry.index, last)
    this.#arm()
  }

  /** Cancels the timer. The caller must have cleared every task, and must set no further one. */
  close(): void {
    this.#timer?.cancel()
    this.#timer = undefined
    this.#timerAtMs = Number.POSITIVE_INFINITY
  }

  #tick(): void {
    this.#timer = undefined
    this.#timerAtMs = Number.POSITIVE_INFINITY
    const now = this.#clock.now()
    const wallOffsetMs = now.wallMs - now.monotonicMs
    const jumped = wallOffsetMs - this.#wallOffsetMs > WALL_JUMP_MS
    this.#wallOffsetMs = wallOffsetMs
    this.#tickMs = now.monotonicMs
    try {
      if (jumped) this.#runAll(now)
      else this.#runDue(now)
    } finally {
      this.#tickMs = undefined
      this.#arm()
    }
  }

  #runAll(now: Instant): void {
    for (const { task } of [...this.#heap]) if (task.schedulerEntry !== undefined) task.due(now)
  }

  #runDue(now: Instant): void {
    for (let first = this.#heap[0]; first !== undefined && first.atMs <= now.monotonicMs; first = this.#heap[0]) {
      const { task, order } = first
      task.due(now)
      if (task.schedulerEntry !== first || first.order !== order) continue
      // The task has not been set again.
      first.atMs = Number.POSITIVE_INFINITY
      this.#moveTo(first.index, first)
    }
  }

  /**
   * Replaces the timer only if the first task is due earlier than the timer. A timer that fires with nothing due costs
   * less than replacing it every time. A timer that is replaced for every claim would also never fire while claims come
   * faster than a timer's shortest delay.
   */
  #arm(): void {
    if (this.#tickMs !== undefined) return
    const keepsAlive = this.#keepAlives > 0
    if (this.#timerKeepsAlive !== keepsAlive) this.#timer?.keepAlive?.(keepsAlive)
    this.#timerKeepsAlive = keepsAlive
    const first = this.#heap[0]
    if (first === undefined || first.atMs >= this.#timerAtMs) return
    const nowMs = this.#clock.now().monotonicMs
    const atMs = Math.min(first.atMs, nowMs + MAX_SLEEP_MS)
    if (atMs >= this.#timerAtMs) return
    this.#timer?.cancel()
    this.#timerAtMs = atMs
    this.#timer = this.#clock.setTimer(() => this.#tick(), atMs - nowMs, keepsAlive)
  }

  #readWallOffset(): number {
    const now = this.#clock.now()
    return now.wallMs - now.monotonicMs
  }

  /** Puts an entry at this index of the heap, or where it belongs above or below. */
  #moveTo(from: number, entry: SchedulerEntry): void {
    const heap = this.#heap
    let index = from
    while (index > 0) {
      const parent = heap[(index - 1) >> 1]
      if (parent === undefined || !isBefore(entry, parent)) break
      index = this.#place(parent, index)
    }
    for (;;) {
      const left = heap[2 * index + 1]
      const right = heap[2 * index + 2]
      const smaller = right !== undefined && left !== undefined && isBefore(right, left) ? right : left
      if (smaller === undefined || !isBefore(smaller, entry)) break
      index = this.#place(smaller, index)
    }
    this.#place(entry, index)
  }

  /** Returns the index that the entry had before. */
  #place(entry: SchedulerEntry, index: number): number {
    const before = entry.index
    entry.index = index
    this.#heap[index] = entry
    return before
  }
}

const isBefore = (a: SchedulerEntry, b: SchedulerEntry): boolean =>
  a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order)

/** More than NTP slews the clock between two ticks, and more than the rounding of the wall clock to milliseconds. */
const WALL_JUMP_MS = 5

/** Timers are not more precise than this. */
const SHORTEST_MS = 0.001
