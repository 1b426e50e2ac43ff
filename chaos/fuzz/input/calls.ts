import type { DistributedLock, Driver } from 'holdfast'
import type { Draw } from '../../draw.ts'
import type { Library } from '../../wire/library.ts'
import { oddMetadata, oddValue } from './odd-values.ts'

/** What a call needs: the library, instances on a driver in memory, and a lock name that no other case uses. */
export interface Bench {
  readonly library: Library
  readonly draw: Draw
  readonly driver: Driver
  readonly lock: DistributedLock
  readonly name: string
}

/** An argument: a valid value, or with some chance an odd one. `isRight` decides whether a call may accept a value. */
export interface Slot {
  readonly valid: (bench: Bench) => unknown
  readonly odd?: (draw: Draw) => unknown
  readonly isRight?: (value: unknown) => boolean
}

/** A function of the public API with its arguments. */
export interface PublicCall {
  readonly name: string
  readonly args: readonly (Slot | Bag)[]
  call(bench: Bench, args: readonly never[]): unknown
}

/** An object of options. */
export interface Bag {
  readonly options: Readonly<Record<string, Slot>>
  /** Options that are always there, unless an odd value replaces them. */
  readonly required?: readonly string[]
}

const between =
  (least: number, most: number) =>
  (value: unknown): boolean =>
    typeof value === 'number' && value >= least - 0.001 && value <= most + 0.001

const YEAR = 31_536_000
const isName = (value: unknown): boolean => typeof value === 'string' && value.length >= 1 && value.length <= 255
const isBoolean = (value: unknown): boolean => typeof value === 'boolean'
const isFunction = (value: unknown): boolean => typeof value === 'function'
const isSignal = (value: unknown): boolean => Object.prototype.toString.call(value) === '[object AbortSignal]'
const isWhole =
  (least: number, most: number) =>
  (value: unknown): boolean =>
    Number.isSafeInteger(value) && between(least, most)(value)

const name: Slot = { valid: (bench) => bench.name, isRight: isName }
/** Of a fence: a text of any length. */
const resource: Slot = { valid: (bench) => bench.name, isRight: (value) => typeof value === 'string' && value !== '' }
const ttl: Slot = { valid: () => 1, isRight: between(0.05, YEAR) }
const wait: Slot = { valid: () => 0.05, isRight: between(0, YEAR) }
const flag: Slot = { valid: ({ draw }) => draw.chance(0.5), isRight: isBoolean }
const signal: Slot = { valid: () => new AbortController().signal, isRight: isSignal }
const metadata: Slot = { valid: () => ({ job: 1 }), odd: oddMetadata }
const work: Slot = { valid: () => () => 7, isRight: isFunction }
const seconds: Slot = { valid: () => 0.5, isRight: between(0.05, YEAR) }
const anything: Slot = { valid: () => undefined, odd: oddValue }

const LOCK: Readonly<Record<string, Slot>> = {
  ...{ timeoutSeconds: ttl, blocking: flag, blockingTimeoutSeconds: wait, metadata, signal, heartbeat: flag },
  ...{ minHoldSeconds: { valid: () => 0, isRight: between(0, YEAR) }, maxHoldSeconds: seconds, under: anything },
}
const lockBag: Bag = { options: LOCK }
const INSTANCE: Readonly<Record<string, Slot>> = {
  ...{ driver: { valid: (bench) => bench.driver }, holderId: { valid: () => 'me', isRight: isName } },
  ...{ callTimeoutSeconds: ttl, waiterTtlSeconds: ttl, heartbeatThread: anything, clock: anything, random: anything },
  deadlockAfterSeconds: { valid: () => 1, isRight: (value) => value === false || between(0, YEAR)(value) },
}
const limit = { valid: () => ({ limit: 5, periodSeconds: 1 }) }

const instance = (options: Readonly<Record<string, Slot>> = {}, required: readonly string[] = []): Bag => ({
  options: { ...INSTANCE, ...options },
  required: ['driver', ...required],
})

/** Closes an instance that was made, so that nothing of it is left. */
const made = async (instance: { close(): Promise<void> }): Promise<void> => instance.close()

export const CALLS: readonly PublicCall[] = [
  { name: 'acquire', args: [name, lockBag], call: ({ lock }, args) => lock.acquire(...(args as unknown as [string])) },
  { name: 'hold', args: [name, lockBag], call: ({ lock }, args) => lock.hold(...(args as unknown as [string])) },
  {
    name: 'withLock',
    args: [name, work, lockBag],
    call: ({ lock }, [a, b, c]) => lock.withLock(a as never, b as never, c),
  },
  {
    name: 'withLocks',
    args: [{ valid: (bench) => [bench.name, `${bench.name}.2`], isRight: Array.isArray }, work, lockBag],
    call: ({ lock }, [a, b, c]) => lock.withLocks(a as never, b as never, c),
  },
  { name: 'release', args: [name, { options: { signal } }], call: ({ lock }, [a, b]) => lock.release(a as never, b) },
  {
    name: 'extend',
    args: [name, seconds, { options: { signal } }],
    call: ({ lock }, [a, b, c]) => lock.extend(a as never, b as never, c),
  },
  {
    name: 'restore',
    args: [{ valid: () => '{}' }, { options: { heartbeat: flag, timeoutSeconds: ttl } }],
    call: ({ lock }, [a, b]) => lock.restore(a as never, b),
  },
  { name: 'inspect', args: [name], call: ({ lock }, [a]) => lock.inspect(a as never) },
  { name: 'isLocked', args: [name], call: ({ lock }, [a]) => lock.isLocked(a as never) },
  {
    name: 'forceRelease',
    args: [name, { options: { by: { valid: () => 'me', isRight: isName } }, required: ['by'] }],
    call: ({ lock }, [a, b]) => lock.forceRelease(a as never, b as never),
  },
  {
    name: 'on',
    args: [{ valid: () => 'lost', isRight: (value) => typeof value === 'string' }, work],
    call: ({ lock }, [a, b]) => lock.on(a as never, b as never)(),
  },
  {
    name: 'DistributedLock',
    args: [instance({ reacquire: { valid: () => 'refuse' }, defaults: { valid: () => ({ timeoutSeconds: 1 }) } })],
    call: ({ library }, [a]) => made(new library.DistributedLock(a)),
  },
  { name: 'ReadWriteLock', args: [instance()], call: ({ library }, [a]) => made(new library.ReadWriteLock(a)) },
  {
    name: 'Semaphore',
    args: [instance({ limit: { valid: () => 3, isRight: isWhole(1, 1_000_000) } }, ['limit'])],
    call: ({ library }, [a]) => made(new library.Semaphore(a as never)),
  },
  {
    name: 'Semaphore.acquire',
    args: [name, { options: { ...LOCK, permits: { valid: () => 2, isRight: isWhole(1, 3) } } }],
    call: ({ library, driver }, [a, b]) => new library.Semaphore({ driver, limit: 3 }).acquire(a as never, b),
  },
  {
    name: 'ReadWriteLock.acquireRead',
    args: [name, lockBag],
    call: ({ library, driver }, [a, b]) => new library.ReadWriteLock({ driver }).acquireRead(a as never, b),
  },
  {
    name: 'LeaderElection',
    args: [instance({ name, timeoutSeconds: ttl }, ['name'])],
    call: ({ library }, [a]) => made(new library.LeaderElection(a as never)),
  },
  {
    name: 'campaign',
    args: [
      {
        options: {
          ...{ value: { valid: () => ({ url: 'x' }), odd: oddMetadata }, signal, blockingTimeoutSeconds: wait },
          ...{ maxTermSeconds: seconds, onDemoted: work },
        },
      },
    ],
    async call({ library, driver, name: lockName }, [a]) {
      const election = new library.LeaderElection({ driver, name: lockName })
      await election.campaign(a).finally(() => election.close())
    },
  },
  {
    name: 'once',
    args: [name, work, { options: { forSeconds: seconds, timeoutSeconds: ttl, signal }, required: ['forSeconds'] }],
    call: ({ library, driver }, [a, b, c]) => new library.OnceOnly({ driver }).once(a as never, b as never, c as never),
  },
  {
    name: 'once, its result',
    args: [name, { valid: () => 7, odd: oddMetadata }],
    call: ({ library, driver }, [a, b]) =>
      new library.OnceOnly({ driver }).once(a as never, () => b as unknown, { forSeconds: 1 }),
  },
  {
    name: 'everyTick',
    args: [name, work, { options: { forSeconds: seconds, everySeconds: seconds, timeoutSeconds: ttl } }],
    call: ({ library, driver }, [a, b, c]) => new library.OnceOnly({ driver }).everyTick(a as never, b as never, c)(),
  },
  {
    name: 'RateLimiter',
    args: [
      {
        options: {
          ...{ driver: { valid: (bench) => bench.driver }, limits: limit, callTimeoutSeconds: ttl, clock: anything },
          ...{ localShare: anything, fallback: anything, fallbackSeconds: anything, random: anything },
        },
        required: ['driver', 'limits'],
      },
    ],
    call: ({ library }, [a]) => made(new library.RateLimiter(a as never)),
  },
  {
    name: 'RateLimiter, a limit',
    args: [
      {
        options: {
          limit: { valid: () => 5, isRight: (value) => Number.isFinite(value) && (value as number) > 0 },
          periodSeconds: { valid: () => 1, isRight: (value) => Number.isFinite(value) && (value as number) > 0 },
          burst: { valid: () => 5, isRight: (value) => Number.isFinite(value) && (value as number) >= 0 },
        },
        required: ['limit', 'periodSeconds'],
      },
    ],
    call: ({ library, driver }, [a]) => made(new library.RateLimiter({ driver, limits: a as never })),
  },
  ...(['consume', 'consumeOrThrow', 'peek', 'wait'] as const).map(
    (method): PublicCall => ({
      name: method,
      args: [name, { options: { cost: { valid: () => 1, isRight: isWhole(0, 5) } } }],
      call: ({ library, driver }, [a, b]) =>
        new library.RateLimiter({ driver, limits: { limit: 5, periodSeconds: 1 } })[method](a as never, b),
    }),
  ),
  {
    name: 'block',
    args: [name, { valid: () => 1, isRight: (value) => Number.isFinite(value) && (value as number) >= 0 }],
    call: ({ library, driver }, [a, b]) =>
      new library.RateLimiter({ driver, limits: { limit: 5, periodSeconds: 1 } }).block(a as never, b as never),
  },
  { name: 'Fence', args: [{ options: { maxResources: anything } }], call: ({ library }, [a]) => new library.Fence(a) },
  {
    name: 'Fence.accept',
    args: [resource, { valid: () => 7, isRight: (value) => typeof value === 'number' || typeof value === 'object' }],
    call: ({ library }, [a, b]) => new library.Fence().accept(a as never, b as never),
  },
  {
    name: 'close',
    args: [{ options: { drainSeconds: { valid: () => 0, isRight: between(0, YEAR) } } }],
    call: ({ library, driver }, [a]) => new library.DistributedLock({ driver }).close(a),
  },
  {
    name: 'inspect of a driver',
    args: [
      {
        options: {
          ...{ lockName: name, prefix: { valid: () => '', isRight: (value) => typeof value === 'string' } },
          ...{ after: anything, pageSize: { valid: () => 1, isRight: isWhole(1, 10_000) } },
        },
      },
    ],
    call: ({ driver }, [a]) => driver.inspect(a as never),
  },
  {
    name: 'connect',
    args: [{ valid: () => 'memory:', isRight: (value) => typeof value === 'string' }],
    call: ({ library }, [a]) => library.connect(a as never),
  },
  ...(['redisDriver', 'redlockDriver', 'postgresDriver', 'postgresAdvisoryDriver'] as const).map(
    (method): PublicCall => ({
      name: method,
      args: [
        {
          options: {
            ...{ client: anything, nodes: anything, schema: anything, durability: anything, migrate: anything },
            ...{ prefix: anything, replicas: anything, callTimeoutSeconds: anything, onWarning: anything },
            ...{ quorum: anything, nodeTimeoutSeconds: anything, longestTtlSeconds: anything, persistent: anything },
            maxWaitingConnections: anything,
          },
        },
      ],
      call: ({ library }, [a]) => library[method](a as never),
    }),
  ),
  {
    name: 'migratePostgres',
    args: [{ options: { client: anything, schema: anything, only: anything } }],
    call: ({ library }, [a]) => library.migratePostgres(a as never),
  },
]
