import { LeaseLostError, NotAcquiredError } from '../../core/errors.ts'
import type { Lease } from '../../core/lease/lease.ts'
import { onAbort } from '../../core/time/abort.ts'
import { LeaderElection } from '../../primitives/election/leader-election.ts'
import type { Term } from '../../primitives/election/term.ts'
import type { LockOptions, LockResult } from '../../primitives/lock/claims.ts'
import { DistributedLock } from '../../primitives/lock/distributed-lock.ts'
import { ReadWriteLock } from '../../primitives/lock/read-write-lock.ts'
import { Semaphore } from '../../primitives/lock/semaphore.ts'
import type { MutexHandle, MutexInstance, MutexSubject, MutexSubjectOptions, Taken } from './mutex.ts'
import type { Need } from './needs.ts'
import { WAITS } from './test-context.ts'
import { deferred } from './timing.ts'
import { webLocksSubject } from './web-locks-subject.ts'

/** A form that returns a result. */
const answering =
  (acquire: (lockName: string, options?: LockOptions) => Promise<LockResult>): MutexInstance['take'] =>
  async (lockName, options) => {
    const result = await acquire(lockName, options)
    return result.acquired ? { acquired: true, handle: result.lock } : { acquired: false, holder: result.holder }
  }

/** A form that throws on contention. */
const holding =
  (hold: (lockName: string, options?: LockOptions) => Promise<Lease>): MutexInstance['take'] =>
  (lockName, options) =>
    hold(lockName, options).then((lease): Taken => ({ acquired: true, handle: lease }), asTaken)

/** A form that runs a function. The release of its handle ends the function. */
const running =
  (run: (lockName: string, fn: (lease: Lease) => Promise<void>, options?: LockOptions) => Promise<void>) =>
  (lockName: string, options?: LockOptions): Promise<Taken> => {
    const taken = deferred<Taken>()
    const released = deferred()
    const job = run(
      lockName,
      async (lease) => {
        const release = async (): Promise<boolean> => {
          const wasHeld = lease.held
          released.resolve()
          return (await job) && wasHeld
        }
        // Asked to stop while it still holds the lock: its instance is being closed, and waits for the function.
        onAbort(lease.signal, () => lease.held && released.resolve())
        taken.resolve({ acquired: true, handle: handleOf(lease, release) })
        await released.promise
      },
      options,
    )
      .then(() => true)
      // Before the handle exists, this is why there is none. Afterwards only a loss is expected, which release reports.
      .catch((error: unknown) => {
        if (error instanceof LeaseLostError) taken.reject(error)
        else taken.resolve(asTaken(error))
        return false
      })
      .catch((error: unknown) => {
        taken.reject(error)
        return false
      })
    return taken.promise
  }

/** One form of a primitive, as a mutex. */
function subject<Primitive extends { close(): Promise<void> }>(
  name: string,
  make: (options: MutexSubjectOptions) => Primitive,
  takeBy: (primitive: Primitive) => MutexInstance['take'],
  needs: readonly Need[] = [],
): MutexSubject {
  const open = (options: MutexSubjectOptions): MutexInstance => {
    const primitive = make(options)
    return { take: takeBy(primitive), close: () => primitive.close() }
  }
  return { name, needs, open }
}

/** One election for each name. Resigning aborts a term's signal, too, but the suite watches for losses only. */
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

const lock = (options: MutexSubjectOptions) => new DistributedLock({ ...options, defaults: WAITS })
const readWriteLock = (options: MutexSubjectOptions) => new ReadWriteLock({ ...options, defaults: WAITS })
const semaphore = (options: MutexSubjectOptions) => new Semaphore({ ...options, limit: 1, defaults: WAITS })

/** It asks for all names at once, and then waits for one after the other. */
const withLocks: MutexSubject = {
  name: 'DistributedLock.withLocks',
  needs: [],
  open(options) {
    const of = lock(options)
    const take = running((lockName, fn, lockOptions) =>
      of.withLocks([lockName], ([lease]) => fn(lease as Lease), lockOptions),
    )
    return { take, asksBeforeWaiting: 2, close: () => of.close() }
  },
}

export const lockSubjects: readonly MutexSubject[] = [
  subject('DistributedLock.acquire', lock, (of) => answering((...args) => of.acquire(...args))),
  subject('DistributedLock.hold', lock, (of) => holding((...args) => of.hold(...args))),
  subject('DistributedLock.withLock', lock, (of) => running((...args) => of.withLock(...args))),
]

/** They run all groups. Of the other primitives it is the form that contains their other forms. */
export const mutexSubjects: readonly MutexSubject[] = [
  ...lockSubjects,
  withLocks,
  subject('ReadWriteLock.withWrite', readWriteLock, (of) => running((...args) => of.withWrite(...args))),
  subject('Semaphore.withPermits', semaphore, (of) => running((...args) => of.withPermits(...args)), ['limit']),
  campaign,
]

/** They run only the group that takes no time: they differ from the forms above in how they ask. */
export const mutexForms: readonly MutexSubject[] = [
  subject('ReadWriteLock.acquireWrite', readWriteLock, (of) => answering((...args) => of.acquireWrite(...args))),
  subject('ReadWriteLock.holdWrite', readWriteLock, (of) => holding((...args) => of.holdWrite(...args))),
  subject('Semaphore.acquire', semaphore, (of) => answering((...args) => of.acquire(...args)), ['limit']),
  subject('Semaphore.hold', semaphore, (of) => holding((...args) => of.hold(...args)), ['limit']),
  webLocksSubject,
]

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
