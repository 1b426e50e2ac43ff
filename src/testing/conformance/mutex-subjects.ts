import type { Driver } from '../../core/driver.ts'
import { LeaseLostError, NotAcquiredError } from '../../core/errors.ts'
import type { Lease, LockInfo } from '../../core/lease.ts'
import { DistributedLock } from '../../primitives/distributed-lock.ts'
import { LeaderElection } from '../../primitives/leader-election.ts'
import type { LockOptions } from '../../primitives/lock-options.ts'
import type { Term } from '../../primitives/term.ts'
import type { Need } from './needs.ts'
import { deferred } from './timing.ts'

/** A primitive that can act as a mutex. Every one goes through the same group of tests. */
export interface MutexSubject {
  readonly name: string
  /** What it needs of a driver beyond exclusive claims. */
  readonly needs: readonly Need[]
  open(options: MutexSubjectOptions): MutexInstance
}

export interface MutexSubjectOptions {
  readonly driver: Driver
  readonly holderId: string
  readonly callTimeoutSeconds?: number
  readonly waiterTtlSeconds?: number
}

/** One process's instance. */
export interface MutexInstance {
  /** Contention is a value; everything else rejects. */
  take(lockName: string, options?: LockOptions): Promise<Taken>
  close(): Promise<void>
}

export type Taken =
  | { readonly acquired: true; readonly handle: MutexHandle }
  | { readonly acquired: false; readonly holder: LockInfo | undefined }

export interface MutexHandle {
  readonly held: boolean
  readonly signal: AbortSignal
  readonly fencingToken: number
  /** True if it was still held. */
  release(): Promise<boolean>
}

const acquire: MutexSubject = {
  name: 'DistributedLock.acquire',
  needs: [],
  open(options) {
    const lock = new DistributedLock(options)
    return {
      async take(lockName, lockOptions) {
        const result = await lock.acquire(lockName, lockOptions)
        return result.acquired ? { acquired: true, handle: result.lock } : { acquired: false, holder: result.holder }
      },
      close: () => lock.close(),
    }
  },
}

const hold: MutexSubject = {
  name: 'DistributedLock.hold',
  needs: [],
  open(options) {
    const lock = new DistributedLock(options)
    return {
      take: (lockName, lockOptions) =>
        lock.hold(lockName, lockOptions).then((lease): Taken => ({ acquired: true, handle: lease }), asTaken),
      close: () => lock.close(),
    }
  },
}

/** Its handle's release ends the callback. */
const withLock: MutexSubject = {
  name: 'DistributedLock.withLock',
  needs: [],
  open(options) {
    const lock = new DistributedLock(options)
    return {
      take(lockName, lockOptions) {
        const taken = deferred<Taken>()
        const released = deferred()
        const run = lock
          .withLock(
            lockName,
            async (lease) => {
              const release = async (): Promise<boolean> => {
                const wasHeld = lease.held
                released.resolve()
                await run
                return wasHeld
              }
              taken.resolve({ acquired: true, handle: handleOf(lease, release) })
              await released.promise
            },
            lockOptions,
          )
          // After the handle was given out this can only be a loss, which the handle has told of.
          .catch((error: unknown) => taken.resolve(asTaken(error)))
          .catch((error: unknown) => taken.reject(error))
        return taken.promise
      },
      close: () => lock.close(),
    }
  },
}

/** One election for each name. A term that ends by resigning tells its signal too; what the suite watches is the loss. */
const campaign: MutexSubject = {
  name: 'LeaderElection.campaign',
  needs: [],
  open(options) {
    const elections = new Set<LeaderElection>()
    return {
      async take(name, { timeoutSeconds = 30, blocking = true, blockingTimeoutSeconds = 10, signal, heartbeat } = {}) {
        const election = new LeaderElection({ ...options, name, timeoutSeconds })
        elections.add(election)
        try {
          const term = await election.campaign({
            blockingTimeoutSeconds: blocking ? blockingTimeoutSeconds : 0,
            ...(signal && { signal }),
            ...(heartbeat === false && { maxTermSeconds: 0.05 }),
          })
          return { acquired: true, handle: handleOf(term, () => term.resign(), signalOfLoss(term)) }
        } catch (error) {
          return asTaken(error)
        }
      },
      async close() {
        await Promise.all([...elections].map((election) => election.close()))
      },
    }
  },
}

export const mutexSubjects: readonly MutexSubject[] = [acquire, hold, withLock, campaign]

function signalOfLoss({ signal }: Term): AbortSignal {
  const lost = new AbortController()
  signal.addEventListener('abort', () => {
    if (signal.reason instanceof LeaseLostError) lost.abort(signal.reason)
  })
  return lost.signal
}

function asTaken(error: unknown): Taken {
  if (error instanceof NotAcquiredError) return { acquired: false, holder: error.holder }
  throw error
}

const handleOf = (
  lease: Pick<Lease, 'held' | 'fencingToken' | 'signal'>,
  release: () => Promise<boolean>,
  signal?: AbortSignal,
): MutexHandle => ({
  get held() {
    return lease.held
  },
  get signal() {
    return signal ?? lease.signal
  },
  fencingToken: lease.fencingToken,
  release,
})
