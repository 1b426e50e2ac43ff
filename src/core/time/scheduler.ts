import { MAX_NAP_MS } from '../limits.ts'
import type { Clock, Timer } from './clock.ts'
import type { Random } from './random.ts'

/** Something with a next moment at which to look at the clock. It looks for itself what is due: being called early is harmless. */
export interface Task {
  due(): void
  /** A claim that waits is work under way and keeps the process alive; a lease that is merely held does not. */
  readonly keepsAlive: boolean
  /** The agenda's own note of it, kept here because looking it up would cost more than all the rest. */
  schedulerEntry?: SchedulerEntry | undefined
}

export interface SchedulerEntry {
  readonly task: Task
  atMs: number
  /** Of two with the same moment, the one that was set first comes first. */
  order: number
  index: number
}

/**
 * One timer for any number of tasks. A binary heap, so that 10,000 leases cost the event loop one timer and a renewal costs
 * a dozen comparisons.
 *
 * It never sleeps longer than a second while it has tasks, and compares the two clocks then: after a suspended machine wakes
 * up the monotonic clock has not moved, and no timer would fire in time to say that every lease has run out.
 */
export class Scheduler {
  readonly #clock: Clock
  /** Where this agenda's grid begins, so that the grids of many processes do not coincide. */
  readonly #phase: number
  readonly #heap: SchedulerEntry[] = []
  #timer: Timer | undefined
  #timerAtMs = Number.POSITIVE_INFINITY
  #timerKeepsAlive = false
  #keepAlives = 0
  #settings = 0
  #wallAheadMs = 0

  constructor(clock: Clock, random: Random) {
    this.#clock = clock
    this.#phase = random.fraction()
  }

  get size(): number {
    return this.#heap.length
  }

  /**
   * The nearest earlier moment on a grid of `stepMs`. What may as well come a little early is put there, so that it falls
   * due together with its like and goes to the store in one list.
   */
  round(atMs: number, stepMs: number): number {
    const phaseMs = this.#phase * stepMs
    return Math.floor((atMs - phaseMs) / stepMs) * stepMs + phaseMs
  }

  /** At a moment of the monotonic clock; replaces the task's earlier moment. */
  set(task: Task, atMs: number): void {
    const known = task.schedulerEntry
    this.#settings += 1
    if (known === undefined) {
      if (this.#heap.length === 0) this.#wallAheadMs = this.#readWallAhead()
      const entry = { task, atMs, order: this.#settings, index: this.#heap.length }
      task.schedulerEntry = entry
      this.#heap.push(entry)
      this.#rise(entry)
      if (task.keepsAlive) this.#keepAlives += 1
    } else {
      known.atMs = atMs
      known.order = this.#settings
      this.#rise(known)
      this.#sink(known)
    }
    this.#arm()
  }

  clear(task: Task): void {
    const entry = task.schedulerEntry
    if (entry === undefined) return
    task.schedulerEntry = undefined
    if (task.keepsAlive) this.#keepAlives -= 1
    const last = this.#heap.pop()
    if (last !== undefined && last !== entry) {
      this.#place(last, entry.index)
      this.#rise(last)
      this.#sink(last)
    }
    this.#arm()
  }

  /** Nothing is on it any more, and nothing will be. */
  close(): void {
    this.#timer?.cancel()
    this.#timer = undefined
    this.#timerAtMs = Number.POSITIVE_INFINITY
  }

  #tick(): void {
    this.#timer = undefined
    this.#timerAtMs = Number.POSITIVE_INFINITY
    const wallAheadMs = this.#readWallAhead()
    const jumped = wallAheadMs - this.#wallAheadMs > WALL_JUMP_MS
    this.#wallAheadMs = wallAheadMs
    if (jumped) {
      for (const { task } of [...this.#heap]) if (task.schedulerEntry !== undefined) task.due()
    } else {
      this.#runDue()
    }
    this.#arm()
  }

  #runDue(): void {
    // Taken out first and run then, so that a task that is due again at once cannot keep the loop going.
    const nowMs = this.#clock.now().monotonicMs
    const due: Task[] = []
    for (let first = this.#heap[0]; first !== undefined && first.atMs <= nowMs; first = this.#heap[0]) {
      first.atMs = Number.POSITIVE_INFINITY
      this.#sink(first)
      due.push(first.task)
    }
    for (const task of due) if (task.schedulerEntry !== undefined) task.due()
  }

  /**
   * Moves the timer only when the next moment has come nearer. One that fires with nothing due costs less than moving it every time; and a timer that
   * is moved at every claim would never fire while claims come faster than a timer's shortest delay.
   */
  #arm(): void {
    const keepsAlive = this.#keepAlives > 0
    if (this.#timerKeepsAlive !== keepsAlive) this.#timer?.keepAlive?.(keepsAlive)
    this.#timerKeepsAlive = keepsAlive
    const first = this.#heap[0]
    if (first === undefined || first.atMs >= this.#timerAtMs) return
    const nowMs = this.#clock.now().monotonicMs
    const atMs = Math.min(first.atMs, nowMs + MAX_NAP_MS)
    if (atMs >= this.#timerAtMs) return
    this.#timer?.cancel()
    this.#timerAtMs = atMs
    this.#timer = this.#clock.setTimer(() => this.#tick(), atMs - nowMs, keepsAlive)
  }

  #readWallAhead(): number {
    const now = this.#clock.now()
    return now.wallMs - now.monotonicMs
  }

  #rise(entry: SchedulerEntry): void {
    while (entry.index > 0) {
      const parent = this.#heap[(entry.index - 1) >> 1]
      if (parent === undefined || !isBefore(entry, parent)) return
      this.#swap(entry, parent)
    }
  }

  #sink(entry: SchedulerEntry): void {
    for (;;) {
      const left = this.#heap[2 * entry.index + 1]
      const right = this.#heap[2 * entry.index + 2]
      const least = right !== undefined && left !== undefined && isBefore(right, left) ? right : left
      if (least === undefined || !isBefore(least, entry)) return
      this.#swap(entry, least)
    }
  }

  #swap(a: SchedulerEntry, b: SchedulerEntry): void {
    const index = a.index
    this.#place(a, b.index)
    this.#place(b, index)
  }

  #place(entry: SchedulerEntry, index: number): void {
    entry.index = index
    this.#heap[index] = entry
  }
}

const isBefore = (a: SchedulerEntry, b: SchedulerEntry): boolean =>
  a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order)

/** More than clock discipline ever slews between two ticks, and than the wall clock's whole milliseconds make up. */
const WALL_JUMP_MS = 5
