import { randomBytes } from 'node:crypto'
import type { Capabilities, Claim, Driver } from '../../core/driver.ts'
import { DistributedLock, type DistributedLockOptions } from '../../primitives/lock/distributed-lock.ts'
import { type FaultyNetwork, faultyNetwork } from './faulty-network.ts'
import type { MutexInstance, MutexSubject } from './mutex.ts'
import type { ConformanceStore } from './store.ts'
import { LONG_MS, outlast } from './timing.ts'

/** What a test works with: unique lock names, and a driver for each process that it wants to play. */
export interface TestContext {
  readonly capabilities: Capabilities
  /** Unique to this test, so that a server can be shared by many runs. */
  readonly lockName: string
  /** Another unique name, which begins with `lockName`. */
  name(suffix: string): string
  /** By default on `lockName`, exclusive, with a long TTL, and not waiting. */
  claim(changes?: Partial<Claim>): Claim
  /** A new driver on the same store, as another process would have. */
  driver(): Promise<Driver>
  /** A primitive on a driver of its own, with a network between them that the test can break. */
  open<Primitive extends Closable>(make: (driver: Driver) => Primitive): Promise<PrimitiveProcess<Primitive>>
  /** The same for a `DistributedLock`. Its claims wait by default. */
  lock(options?: Omit<DistributedLockOptions, 'driver' | 'url'>): Promise<LockProcess>
  /** The same for a primitive that is tested as a mutex. */
  mutex(subject: MutexSubject, options?: MutexOptions): Promise<MutexProcess>
  /** Lets a driver's lease end without being released: its time runs out, or its session dies. */
  leaseEnds(driver: Driver, ttlMs: number): Promise<void>
  /** Cuts a process off from the store, so that its leases end there by themselves. */
  cutOff(process: Pick<PrimitiveProcess<unknown>, 'network' | 'realDriver'>): Promise<void>
}

interface Closable {
  close(): Promise<void>
}

export interface PrimitiveProcess<Primitive> {
  readonly primitive: Primitive
  readonly network: FaultyNetwork
  readonly realDriver: Driver
}

export interface LockProcess extends PrimitiveProcess<DistributedLock> {
  readonly lock: DistributedLock
}

export interface MutexProcess extends MutexInstance {
  readonly holderId: string
  readonly network: FaultyNetwork
  readonly realDriver: Driver
}

export interface MutexOptions {
  readonly callTimeoutSeconds?: number
  readonly waiterTtlSeconds?: number
}

/** Runs a test's body and then closes all that it opened, even if it failed. */
export async function withTestContext(
  store: ConformanceStore,
  capabilities: Capabilities,
  body: (context: TestContext) => Promise<void>,
): Promise<void> {
  const lockName = `conformance:${uniqueId()}`
  const drivers: Driver[] = []
  const networks: FaultyNetwork[] = []
  const instances: Closable[] = []
  const calls: Promise<unknown>[] = []
  let hasFailed = false
  let claims = 0
  let processes = 0

  async function driver(): Promise<Driver> {
    const opened = await store.driver()
    drivers.push(opened)
    return opened
  }

  async function open<Primitive extends Closable>(
    make: (driver: Driver) => Primitive,
  ): Promise<PrimitiveProcess<Primitive>> {
    const realDriver = await driver()
    const network = faultyNetwork(realDriver)
    networks.push(network)
    const primitive = make(network.driver)
    instances.push(primitive)
    return { primitive: recorded(primitive, record), network, realDriver }
  }

  /**
   * A test that has failed awaits no call any more that it has begun. Closing rejects these calls, and a runner that
   * does not handle unhandled rejections itself would end with the first one.
   */
  function record(call: Promise<unknown>): void {
    if (hasFailed) call.catch(() => {})
    else calls.push(call)
  }

  async function endSession(of: Driver): Promise<void> {
    if (store.endSession === undefined) {
      throw new Error(
        'a store whose leases last as long as a session needs the method `endSession`, so that the suite can end one',
      )
    }
    await store.endSession(of)
  }

  const context: TestContext = {
    capabilities,
    lockName,
    name: (suffix) => `${lockName}:${suffix}`,
    claim(changes) {
      claims += 1
      const claimId = `${lockName}.${claims}`
      const plain = { mode: 'exclusive', permits: 1, ttlMs: LONG_MS, waiterTtlMs: 0 } as const
      return { lockName, claimId, holderId: `holder of ${claimId}`, ...plain, ...changes }
    },
    driver,
    open,
    async lock(options = {}) {
      const process = await open((to) => new DistributedLock({ defaults: WAITS, ...options, driver: to }))
      return { ...process, lock: process.primitive }
    },
    async mutex(subject, options = {}) {
      processes += 1
      const holderId = `holder ${processes} of ${lockName}`
      const { primitive, ...process } = await open((to) => subject.open({ ...options, driver: to, holderId }))
      return { ...primitive, ...process, holderId }
    },
    async leaseEnds(of, ttlMs) {
      if (capabilities.expiry === 'session') await endSession(of)
      else await outlast(ttlMs)
    },
    async cutOff({ network, realDriver }) {
      network.cut()
      if (capabilities.expiry === 'session') await endSession(realDriver)
    },
  }

  try {
    await body(context)
  } catch (error) {
    hasFailed = true
    for (const call of calls.splice(0)) record(call)
    throw error
  } finally {
    for (const network of networks) network.heal()
    await Promise.all(instances.map((instance) => instance.close()))
    await Promise.all(drivers.map((opened) => opened.close()))
  }
}

/** The same object, whose methods pass the promises that they return to `record`. */
const recorded = <Instance extends object>(instance: Instance, record: (call: Promise<unknown>) => void): Instance =>
  new Proxy(instance, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name)
      if (typeof value !== 'function') return value
      return (...args: unknown[]): unknown => {
        const result: unknown = Reflect.apply(value, target, args)
        if (result instanceof Promise) record(result)
        return result
      }
    },
  })

/** Claims wait, so that a grant that a loaded machine delivers too late is asked for again. */
export const WAITS = { blocking: true } as const

const uniqueId = (): string => randomBytes(9).toString('base64url')
