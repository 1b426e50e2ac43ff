import type { Driver } from '../../src/core/driver.ts'
import type { Clock } from '../../src/core/time/clock.ts'
import type { Random } from '../../src/core/time/random.ts'
import { DistributedLock, LeaderElection, OnceOnly, RateLimiter, ReadWriteLock, Semaphore } from '../../src/index.ts'
import { LIMIT, PERMITS, type Reacquire, type Share } from './program.ts'

export type Lockable = DistributedLock | ReadWriteLock | Semaphore
export type Closes = Lockable | OnceOnly | LeaderElection | RateLimiter

interface InstanceOptions {
  readonly driver: Driver
  readonly clock: Clock
  readonly random: Random
  readonly reacquire: Reacquire
  readonly holderId: string
}

/** The primitives of one process. Each is made when it is first used. A closed one is replaced. */
export class Instance {
  readonly #options: InstanceOptions
  readonly #objects = new Map<string, Closes>()

  constructor(options: InstanceOptions) {
    this.#options = options
  }

  /** What makes claims of this share. */
  object(share: Share): Lockable {
    const { reacquire, ...options } = this.#options
    if (share === 'lock') return this.#made('lock', () => new DistributedLock({ ...options, reacquire }))
    if (share === 'permits') return this.#made('semaphore', () => new Semaphore({ ...options, limit: PERMITS }))
    return this.#made('read-write lock', () => new ReadWriteLock(options))
  }

  get once(): OnceOnly {
    const { reacquire: _, ...options } = this.#options
    return this.#made('once', () => new OnceOnly(options))
  }

  election(name: string): LeaderElection {
    const { reacquire: _, ...options } = this.#options
    return this.#made(`election ${name}`, () => new LeaderElection({ ...options, name, timeoutSeconds: 2 }))
  }

  get limiter(): RateLimiter {
    const { driver, clock, random } = this.#options
    return this.#made('limiter', () => new RateLimiter({ driver, clock, random, limits: LIMIT }))
  }

  forget(object: Closes): void {
    for (const [name, each] of this.#objects) if (each === object) this.#objects.delete(name)
  }

  async close(): Promise<void> {
    await Promise.all([...this.#objects.values()].map((each) => each.close()))
  }

  #made<T extends Closes>(name: string, make: () => T): T {
    // The name decides the class.
    const made = (this.#objects.get(name) as T | undefined) ?? make()
    this.#objects.set(name, made)
    return made
  }
}
