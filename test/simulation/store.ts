import type { Driver, DriverListener } from '../../src/core/driver.ts'
import { StoreError } from '../../src/core/errors.ts'
import type { Clock } from '../../src/core/time/clock.ts'
import type { VirtualTime } from '../../src/testing/virtual-clock.ts'

/** Makes a driver on an empty store, such as `(clock) => memoryDriver({ store: createMemoryStore(clock) })`. */
export type OpenStore = (clock: Clock) => Driver

export interface SimulatedStore {
  readonly driver: Driver
  /** The store is down for `downMs` and comes back empty. `breaksSubscriptions` also ends the subscriptions. */
  loseData(downMs: number, breaksSubscriptions: boolean): void
}

export interface SimulatedStoreOptions {
  readonly open: OpenStore
  readonly clock: Clock
  readonly time: VirtualTime
  /** Notifies all listeners of every release, as a store without a queue does. */
  readonly broadcasts: boolean
}

/** One store for all processes, which can lose its data. */
export function simulatedStore({ open, clock, time, broadcasts }: SimulatedStoreOptions): SimulatedStore {
  const listeners = new Set<DriverListener>()
  const tellAll = (message: (listener: DriverListener) => void): void => {
    for (const listener of [...listeners]) message(listener)
  }
  const relay: DriverListener = {
    wake: (target) => tellAll((each) => each.wake(target)),
    granted: (...grant) => tellAll((each) => each.granted(...grant)),
    lost: (claimId, cause) => tellAll((each) => each.lost(claimId, cause)),
    disconnected: (cause) => tellAll((each) => each.disconnected(cause)),
  }

  function start(): Driver {
    const driver = open(clock)
    void driver.listen?.(relay)
    return driver
  }

  let current: Driver | undefined = start()
  const { name, capabilities } = current
  async function up(): Promise<Driver> {
    if (current === undefined) throw new StoreError('the store is down')
    return current
  }

  return {
    driver: {
      name,
      capabilities,
      acquire: async (claims, call) => (await up()).acquire(claims, call),
      renew: async (renewals) => (await up()).renew(renewals),
      async release(leases) {
        const answers = await (await up()).release(leases)
        if (broadcasts) {
          leases.forEach(({ lockName }, index) => {
            if (answers[index] === true) tellAll((each) => each.wake({ lockName }))
          })
        }
        return answers
      },
      inspect: async (query) => (await up()).inspect(query),
      async listen(listener) {
        await up()
        listeners.add(listener)
        return async () => {
          listeners.delete(listener)
        }
      },
      close: async () => undefined,
    },
    loseData(downMs, breaksSubscriptions) {
      current = undefined
      if (breaksSubscriptions) relay.disconnected(new StoreError('the store was restarted'))
      time.in(downMs, () => {
        current = start()
      })
    },
  }
}
