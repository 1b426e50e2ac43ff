import type { AsyncLocalStorage } from 'node:async_hooks'
import type { Chain } from '../../core/claim/chain.ts'
import type { ClaimRequest } from '../../core/claim/holder.ts'
import { DeadlockError } from '../../core/errors.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { reentryContext } from '../../core/reentry-context.ts'
import { beneath, chainOf, InnerLease } from './inner-lease.ts'
import type { RequestedShare } from './options.ts'

/**
 * Tracks the callback of a `with…`, so that the same name inside it is entered again instead of waiting for itself.
 *
 * A frame ends with its callback. A task that was started inside and goes on still carries the context, but it finds
 * the frame ended and has to ask the store like any other.
 */
export class Reentry {
  run<T>(lease: Lease, share: RequestedShare, callback: () => Promise<T>): Promise<T> {
    const outer = frames.getStore()
    const frame: Frame = { owner: this, lease, share, outer, inner: [], runs: new Set(), ended: false }
    return runFrame(frame, callback)
  }

  /**
   * The callbacks whose leases were entered do not release them before this is disposed of. Call it in the step in
   * which they were entered: a callback that ends in between would not know of them.
   */
  keep(entered: readonly Lease[]): Disposable {
    let end = (): void => undefined
    const run = new Promise<void>((resolve) => {
      end = resolve
    })
    const kept = entered.flatMap((lease) => entries.get(lease) ?? [])
    for (const frame of kept) {
      frame.runs.add(run)
      // They end with their own function. A release by name in the function around it does not mean them.
      frame.inner = frame.inner.filter((each) => !entered.includes(each))
    }
    return {
      [Symbol.dispose]: () => {
        for (const frame of kept) frame.runs.delete(run)
        end()
      },
    }
  }

  /**
   * Enters the lease that the running callback holds on this name, if that covers the request. Throws `DeadlockError`
   * if the request conflicts with that lease and would wait: it would wait for itself. A request that does not wait is
   * left to the store, which refuses it.
   */
  enter({ lockName, waitMs }: Asked, share: RequestedShare): Lease | undefined {
    // Most claims are made outside any callback.
    if (frames.getStore() === undefined) return undefined
    // Permits are counted: a second claim takes more of them.
    if (share.limit !== undefined) return waitMs > 0 ? this.#assertRoom(lockName, share) : undefined
    let tooLittle: Lease | undefined
    for (const frame of this.#framesOf(lockName)) {
      if (!frame.lease.held) continue
      if (frame.share.mode === 'exclusive' || share.mode === 'shared') return enterFrame(frame)
      tooLittle = frame.lease
    }
    if (tooLittle === undefined || waitMs === 0) return undefined
    throw waitsForItself(tooLittle, 'it holds it as a reader, and a writer has to wait until every reader is gone')
  }

  /**
   * For what cannot be entered again. Throws `DeadlockError` if the running callback holds this name and would wait.
   */
  assertOutside({ lockName, waitMs }: Asked, why: string): void {
    if (waitMs === 0) return
    for (const { lease } of this.#framesOf(lockName)) if (lease.held) throw waitsForItself(lease, why)
  }

  /**
   * The chain for a claim that is made now: that of the innermost callback with a lease of its own, in any instance.
   */
  get chain(): Chain | undefined {
    for (let frame = frames.getStore(); frame !== undefined; frame = frame.outer) {
      // A frame that entered a lease again is inside the frame that holds it, and inside those between.
      if (frame.ended || entries.has(frame.lease)) continue
      // A released lease blocks no one, although the store may keep it for `minHoldSeconds`.
      if (frame.lease.held) return chainOf(frame.lease)
    }
    return undefined
  }

  #assertRoom(lockName: string, { limit = 0, permits = 1 }: RequestedShare): undefined {
    const frames = [...this.#framesOf(lockName)].filter(({ lease }) => lease.held)
    const held = frames.reduce((sum, { share }) => sum + (share.permits ?? 1), 0)
    const [frame] = frames
    if (frame === undefined || held + permits <= limit) return
    throw waitsForItself(frame.lease, `it holds ${held} of ${limit} permits, and wants ${permits} more`)
  }

  /** How many of the nested functions that are running here run under this lease. */
  depthOn(lease: Lease): number {
    let depth = 0
    for (let frame = frames.getStore(); frame !== undefined; frame = frame.outer) {
      if (!frame.ended && beneath(frame.lease) === lease) depth += 1
    }
    return depth
  }

  /** The innermost lease of the running callback on this name. A release by name means this one. */
  innermost(lockName: string): Lease | undefined {
    const [frame] = this.#framesOf(lockName)
    const lease = frame?.inner.at(-1) ?? frame?.lease
    // The callback's own lease may have ended, by release or loss, and the name may have been acquired again.
    return lease instanceof InnerLease || lease?.held ? lease : undefined
  }

  /** From the innermost outwards. */
  *#framesOf(lockName: string): Iterable<Frame> {
    for (let frame = frames.getStore(); frame !== undefined; frame = frame.outer) {
      if (!frame.ended && frame.owner === this && frame.lease.lockName === lockName) yield frame
    }
  }
}

/**
 * Runs the callback, then waits for the functions that it began under the same lease and did not await. Entries by
 * `hold` or `acquire` that were not released are lost then: the lock is released, and nothing says when they would end.
 */
async function runFrame<T>(frame: Frame, callback: () => Promise<T>): Promise<T> {
  try {
    return await frames.run(frame, callback)
  } finally {
    while (frame.runs.size > 0) await Promise.all(frame.runs)
    frame.ended = true
    for (const lease of frame.inner) lease.lose('the function that it was entered in has ended')
  }
}

function enterFrame(frame: Frame): Lease {
  const lease = new InnerLease(frame.lease, (ended) => {
    frame.inner = frame.inner.filter((each) => each !== ended)
    return undefined
  })
  entries.set(lease, frame)
  frame.inner.push(lease)
  return lease
}

function waitsForItself({ lockName, holderId }: Lease, why: string): DeadlockError {
  const message = `the function that runs here would wait for itself on "${lockName}": ${why}`
  return new DeadlockError(message, lockName, [{ holderId, lockName, heldBy: holderId }])
}

/** Core owns the storage without knowing what a frame is. It contains only frames. */
const frames = reentryContext as AsyncLocalStorage<Frame>

type Asked = Pick<ClaimRequest, 'lockName' | 'waitMs'>

interface Frame {
  readonly owner: Reentry
  readonly lease: Lease
  readonly share: RequestedShare
  readonly outer: Frame | undefined
  inner: InnerLease[]
  /** Calls that have entered this frame's lease again and have not ended. */
  readonly runs: Set<Promise<void>>
  ended: boolean
}

/** Which frame a lease entered. */
const entries = new WeakMap<Lease, Frame>()
