import type { AsyncLocalStorage } from 'node:async_hooks'
import type { Chain } from '../../core/claim/chain.ts'
import type { ClaimRequest } from '../../core/claim/holder.ts'
import { DeadlockError } from '../../core/errors.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { reentryContext } from '../../core/reentry-context.ts'
import { beneath, chainOf, InnerLease } from './inner-lease.ts'
import type { LockShare } from './options.ts'

/**
 * Follows the callback of a `with…`, so that the same name inside it is entered again instead of waiting for itself.
 *
 * A frame ends with its callback: a task that was started inside and lives on carries the context with it, but finds the frame ended
 * and has to ask the store like anybody else.
 */
export class Reentry {
  run<T>(lease: Lease, share: LockShare, callback: () => Promise<T>): Promise<T> {
    const outer = frames.getStore()
    const frame: Frame = { owner: this, lease, share, outer, inner: [], runs: new Set(), ended: false }
    return runFrame(frame, callback)
  }

  /**
   * The callbacks whose leases these entered do not give them back before this is disposed of. To be called in the step in which they were
   * entered: a callback that ends in between would not know of them.
   */
  keep(entered: readonly Lease[]): Disposable {
    let end = (): void => undefined
    const run = new Promise<void>((resolve) => {
      end = resolve
    })
    const kept = entered.flatMap((lease) => entries.get(lease) ?? [])
    for (const frame of kept) {
      frame.runs.add(run)
      // They end with their own function: a release by name in the function around it does not mean them.
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
   * A lease inside the one that the running callback holds on this name, if that is enough for what is asked. Throws `DeadlockError` if what it
   * holds stands in the way of what it asks for, and it means to wait: it would wait for itself. What does not wait is for the store to refuse.
   */
  enter({ lockName, waitMs }: Asked, share: LockShare): Lease | undefined {
    // Most claims are made outside of any callback.
    if (frames.getStore() === undefined) return undefined
    // Permits are counted, so a second claim takes more of them.
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

  /** For what cannot be entered again: throws `DeadlockError` if the running callback holds this name and means to wait for it. */
  assertOutside({ lockName, waitMs }: Asked, why: string): void {
    if (waitMs === 0) return
    for (const { lease } of this.#framesOf(lockName)) if (lease.held) throw waitsForItself(lease, why)
  }

  /** What a claim that is made now is made inside of: the innermost callback that runs under a lease of its own, whichever instance holds it. */
  get chain(): Chain | undefined {
    for (let frame = frames.getStore(); frame !== undefined; frame = frame.outer) {
      // One that entered a lease again is inside of the frame that has it, and of those between.
      if (frame.ended || entries.has(frame.lease)) continue
      // What was given back stands in nobody's way, although the store may keep it for `minHoldSeconds`.
      if (frame.lease.held) return chainOf(frame.lease)
    }
    return undefined
  }

  #assertRoom(lockName: string, { limit = 0, permits = 1 }: LockShare): undefined {
    const frames = [...this.#framesOf(lockName)].filter(({ lease }) => lease.held)
    const held = frames.reduce((sum, { share }) => sum + (share.permits ?? 1), 0)
    const [frame] = frames
    if (frame === undefined || held + permits <= limit) return
    throw waitsForItself(frame.lease, `it holds ${held} of ${limit} permits, and wants ${permits} more`)
  }

  /** How many of the functions that run here, one inside the other, run under this lease. */
  depthOn(lease: Lease): number {
    let depth = 0
    for (let frame = frames.getStore(); frame !== undefined; frame = frame.outer) {
      if (!frame.ended && beneath(frame.lease) === lease) depth += 1
    }
    return depth
  }

  /** The innermost lease that the running callback has on this name: what a release by name means there. */
  innermost(lockName: string): Lease | undefined {
    const [frame] = this.#framesOf(lockName)
    const lease = frame?.inner.at(-1) ?? frame?.lease
    // The callback's own lease may be over, by release or loss, and the name taken anew in the ordinary way.
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
 * Runs the callback, and then waits for the functions that it began under the same lease and did not wait for. What was
 * entered by `hold` or `acquire` and not released is lost then: nobody knows when that ends, and the lock is given back.
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

/** Core keeps the storage without knowing what a frame is; nothing else is ever put into it. */
const frames = reentryContext as AsyncLocalStorage<Frame>

type Asked = Pick<ClaimRequest, 'lockName' | 'waitMs'>

interface Frame {
  readonly owner: Reentry
  readonly lease: Lease
  readonly share: LockShare
  readonly outer: Frame | undefined
  inner: InnerLease[]
  /** Calls that have entered this frame's lease again, until each has ended. */
  readonly runs: Set<Promise<void>>
  ended: boolean
}

/** Which frame a lease entered. */
const entries = new WeakMap<Lease, Frame>()
