import { WATCH_AFTER_MS } from '../limits.ts'
import type { LossHints } from '../store/loss-hints.ts'
import type { Instant } from '../time/clock.ts'
import type { Scheduler, SchedulerEntry, Task } from '../time/scheduler.ts'
import type { HeldLease } from './held-lease.ts'

export interface LossWatchParts {
  readonly scheduler: Scheduler
  readonly hints: LossHints
  /** The leases that have not ended, the oldest first. */
  readonly leases: ReadonlySet<HeldLease>
  /** Whether to listen at all. */
  readonly listens: boolean
}

/**
 * Listens for forced releases while an instance holds a lease that is older than a second. People look at a lock before
 * they break it, so a younger lease is not worth a subscription. Once a second it looks at the oldest lease: a lease
 * costs nothing here, and neither does an instance whose leases are all short.
 */
export class LossWatch implements Task {
  readonly keepsAlive = false
  schedulerEntry: SchedulerEntry | undefined
  readonly #parts: LossWatchParts
  #stop: (() => void) | undefined

  constructor(parts: LossWatchParts) {
    this.#parts = parts
    parts.hints.receivers.add(this.#receive)
  }

  /** Call it after a lease was added. */
  begin({ heldSinceMs }: HeldLease): void {
    const { listens, scheduler } = this.#parts
    if (listens && this.schedulerEntry === undefined) scheduler.set(this, heldSinceMs + WATCH_AFTER_MS)
  }

  due(now: Instant): void {
    const { hints, leases, scheduler } = this.#parts
    const [oldest] = leases
    const leftMs = oldest && oldest.heldSinceMs + WATCH_AFTER_MS - now.monotonicMs
    if (leftMs === undefined || leftMs > 0) this.#unwatch()
    else this.#stop ??= hints.watch()
    if (leftMs === undefined) scheduler.clear(this)
    else scheduler.set(this, now.monotonicMs + (leftMs > 0 ? leftMs : WATCH_AFTER_MS))
  }

  close(): void {
    this.#parts.scheduler.clear(this)
    this.#unwatch()
    this.#parts.hints.receivers.delete(this.#receive)
  }

  #unwatch(): void {
    this.#stop?.()
    this.#stop = undefined
  }

  readonly #receive = (messages: ReadonlyMap<string, Error>, most: number): number => {
    let checked = 0
    for (const lease of [...this.#parts.leases]) {
      const cause = messages.get(lease.claim.claimId)
      if (cause === undefined) continue
      if (checked === most) break
      checked += 1
      lease.lossReported(cause)
    }
    return checked
  }
}
