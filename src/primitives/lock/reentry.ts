import type { AsyncLocalStorage } from 'node:async_hooks'
import type { ClaimRequest } from '../../core/claim/holder.ts'
import { DeadlockError } from '../../core/errors.ts'
import type { Chain } from '../../core/lease/chain.ts'
import type { Lease } from '../../core/lease/lease.ts'
import type { LeaseUse, UsedLease } from '../../core/lease/lease-use.ts'
import { reentryContext } from '../../core/reentry-context.ts'

/** What part of a lock is claimed: all of it, a reader's part, or permits of a limit. */
export type RequestedShare = Pick<ClaimRequest, 'mode' | 'limit' | 'permits'>

export const EXCLUSIVE: RequestedShare = { mode: 'exclusive' }

/**
 * Tracks the callback of a `with…`, so that the same name inside it is entered again instead of waiting for itself.
 *
 * A frame ends with its callback. A task that was started inside and goes on still carries the context, but it finds
 * the frame ended and has to ask the store like any other.
 */
export class Reentry {
  /**
   * Runs the callback, then waits for the functions that it began under the same leases and did not await. Entries by
   * `hold` or `acquire` that were not released are lost when its own use ends: nothing says when they would end.
   */
  async run<T>(uses: readonly LeaseUse[], share: RequestedShare, callback: () => Promise<T>): Promise<T> {
    const running: Callback = { runs: new Set(), ended: false }
    let frame = frames.getStore()
    for (const use of uses) frame = { owner: this, use, share, outer: frame, entered: new Set(), callback: running }
    try {
      return await frames.run(frame as Frame, callback)
    } finally {
      while (running.runs.size > 0) await Promise.all(running.runs)
      running.ended = true
    }
  }

  /**
   * Enters the lease that the running callback holds on this name, if that covers the request. Throws `DeadlockError`
   * if the request conflicts with that lease and would wait: it would wait for itself. A request that does not wait is
   * left to the store, which refuses it.
   */
  enter({ lockName, patienceMs }: Asked, share: RequestedShare): Entry | undefined {
    // Most claims are made outside any callback.
    if (frames.getStore() === undefined) return undefined
    // Permits are counted: a second claim takes more of them.
    if (share.limit !== undefined) {
      if (patienceMs > 0) this.#assertRoom(lockName, share)
      return undefined
    }
    let tooLittle: Lease | undefined
    for (const frame of this.#framesOf(lockName)) {
      if (!frame.use.held) continue
      if (frame.share.mode === 'exclusive' || share.mode === 'shared') return new Entry(frame)
      tooLittle = frame.use
    }
    if (tooLittle === undefined || patienceMs === 0) return undefined
    throw waitsForItself(tooLittle, 'it holds it as a reader, and a writer has to wait until every reader is gone')
  }

  /**
   * Runs a function under leases that were entered. The callbacks around it wait for it. Call it in the step in which
   * they were entered: a callback that ends in between would not know of it.
   */
  keepOpenFor<T>(entries: readonly Entry[], run: () => Promise<T>): Promise<T> {
    for (const { use } of entries) use.runsFunction = true
    const work = run()
    const settled = work.then(ignore, ignore)
    for (const { frame } of entries) {
      const { runs } = frame.callback
      runs.add(settled)
      void settled.then(() => runs.delete(settled))
    }
    return work
  }

  /**
   * For what cannot be entered again. Throws `DeadlockError` if the running callback holds this name and would wait.
   */
  assertOutside({ lockName, patienceMs }: Asked, why: string): void {
    if (patienceMs === 0) return
    for (const { use } of this.#framesOf(lockName)) if (use.held) throw waitsForItself(use, why)
  }

  /**
   * The chain for a claim that is made now: that of the innermost callback with a lease of its own, in any instance.
   */
  get chain(): Chain | undefined {
    for (let frame = frames.getStore(); frame !== undefined; frame = frame.outer) {
      // A released lease blocks no one, although the store may keep it for `minHoldSeconds`. A frame that entered a
      // lease again is inside the frame that holds it, and inside those between.
      if (!frame.callback.ended && frame.use.held && !isInside(frame.use.lease, frame.outer)) return frame.use.chain
    }
    return undefined
  }

  /** Whether the running function is inside a callback of this lease. */
  isInside(lease: UsedLease): boolean {
    return isInside(lease, frames.getStore())
  }

  /** Whether the use belongs to the running function, or to one around it. */
  isOwn(use: LeaseUse): boolean {
    for (let frame = frames.getStore(); frame !== undefined; frame = frame.outer) {
      if (!frame.callback.ended && (frame.use === use || frame.entered.has(use))) return true
    }
    return false
  }

  /** The innermost use that the running callback has of this name. A release by name means this one. */
  innermost(lockName: string): LeaseUse | undefined {
    const [frame] = this.#framesOf(lockName)
    const use = [...(frame?.entered ?? [])].at(-1) ?? frame?.use
    // It may have ended, by release or loss, and the name may have been acquired again.
    return use?.held ? use : undefined
  }

  /**
   * Whether the name of a lease means this lease to the running function. If the function began with a lease of its own
   * on that name, which has ended, it means no other one, unless the function has acquired the name again.
   */
  means(lease: UsedLease): boolean {
    const [frame] = this.#framesOf(lease.lockName)
    return frame === undefined || frame.again === lease
  }

  /** Call it when a name is asked for. Returns what to call with the use of the lease that was granted. */
  acquiring(lockName: string): ((use: LeaseUse) => void) | undefined {
    if (frames.getStore() === undefined) return undefined
    const [frame] = this.#framesOf(lockName)
    return (
      frame &&
      ((use) => {
        frame.again = use.lease
      })
    )
  }

  #assertRoom(lockName: string, { limit = 0, permits = 1 }: RequestedShare): void {
    const own = [...this.#framesOf(lockName)].filter(({ use }) => use.held)
    const held = own.reduce((sum, { share }) => sum + (share.permits ?? 1), 0)
    const [frame] = own
    if (frame === undefined || held + permits <= limit) return
    throw waitsForItself(frame.use, `it holds ${held} of ${limit} permits, and wants ${permits} more`)
  }

  /** From the innermost outwards. */
  *#framesOf(lockName: string): Iterable<Frame> {
    for (let frame = frames.getStore(); frame !== undefined; frame = frame.outer) {
      if (!frame.callback.ended && frame.owner === this && frame.use.lockName === lockName) yield frame
    }
  }
}

/** A use of the lease of a callback that is running. It belongs to a function, or is held until the callback ends. */
export class Entry {
  readonly frame: Frame
  readonly use: LeaseUse

  constructor(frame: Frame) {
    this.frame = frame
    this.use = frame.use.lease.use(frame.use)
  }

  /** For a caller that ends it by itself. It is lost when the callback ends before that. */
  hold(): LeaseUse {
    const { use, frame } = this
    frame.entered.add(use)
    use.onEnd = () => frame.entered.delete(use)
    return use
  }
}

function isInside(lease: UsedLease, innermost: Frame | undefined): boolean {
  for (let frame = innermost; frame !== undefined; frame = frame.outer) {
    if (!frame.callback.ended && frame.use.lease === lease) return true
  }
  return false
}

function waitsForItself({ lockName, holderId }: Lease, why: string): DeadlockError {
  const message = `the function that runs here would wait for itself on "${lockName}": ${why}`
  return new DeadlockError(message, lockName, [{ holderId, lockName, heldBy: holderId }])
}

const ignore = (): void => undefined

/** Core owns the storage without knowing what a frame is. It contains only frames. */
const frames = reentryContext as AsyncLocalStorage<Frame>

type Asked = Pick<ClaimRequest, 'lockName' | 'patienceMs'>

interface Frame {
  readonly owner: Reentry
  readonly use: LeaseUse
  readonly share: RequestedShare
  readonly outer: Frame | undefined
  /** Uses of the same lease that were entered here and have not ended, without a function. */
  readonly entered: Set<LeaseUse>
  readonly callback: Callback
  /** The lease that the function has acquired after its own one had ended. */
  again?: UsedLease
}

/** Shared by the frames of one `withLocks`: their leases end together. */
interface Callback {
  /** Functions that have entered one of its leases again and have not ended. */
  readonly runs: Set<Promise<void>>
  ended: boolean
}
