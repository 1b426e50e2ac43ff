import { storeOpener } from '../connect.ts'
import type { Driver, LeaseRecord } from '../core/driver.ts'
import { CALL_TIMEOUT_MS } from '../core/limits.ts'
import { readPages } from '../core/pages.ts'
import { redactedUrl, withoutSecrets } from '../core/secrets.ts'
import { StoreClient } from '../core/store/store-client.ts'
import type { Clock } from '../core/time/clock.ts'
import { systemRandom } from '../core/time/random.ts'
import { forceReleaseWithRecord } from '../primitives/lock/force-release.ts'
import type { Reading } from './lock-view.ts'
import { readRates } from './rates.ts'
import { StoreClock } from './store-clock.ts'
import type { RateList, StoreInfo } from './wire.ts'

/** A store as the dashboard uses it: opened at the first reading, and read in pages. */
export class WatchedStore {
  readonly #source: StoreSource
  readonly #clock: Clock
  readonly #storeClock = new StoreClock()
  #opening: Promise<Opened> | undefined
  #opened: Opened | undefined
  #rates: { readMs: number; readonly list: Promise<RateList> } | undefined
  #closed = false

  constructor(source: StoreSource, clock: Clock) {
    this.#source = source
    this.#clock = clock
  }

  /** Never contains a user name or a password. */
  get info(): StoreInfo {
    const driver = this.#opened?.driver
    const { name = nameOf(this.#source, driver) } = this.#source
    if (driver === undefined) return { name }
    const { queue, metadata, limit, rate, force, expiry } = driver.capabilities
    // A session store has no queue of its own, but shows who waits.
    const waiters = queue || expiry === 'session'
    const rates = driver.extensions?.inspectRates !== undefined ? 'listed' : rate ? 'unlisted' : 'no'
    return {
      name,
      driver: driver.name,
      can: { waiters, metadata, semaphores: limit, rates, force: force !== false, expiry },
    }
  }

  get nowMs(): number {
    return this.#storeClock.now(this.#clock.now().wallMs)
  }

  /** @throws `StoreError`, and what `connect` throws. The next reading tries again. */
  async read(): Promise<Reading> {
    const { client } = await this.#open()
    const startedMs = this.#clock.now().wallMs
    const read = await readPages((query) => client.inspect(query), { pageSize: PAGE_SIZE }, { records: MAX_RECORDS })
    this.#storeClock.learn(read, startedMs, this.#clock.now().wallMs)
    return { ...read, nowMs: this.nowMs }
  }

  /** The limits in use. One reading serves all viewers that ask within a second. */
  rates(): Promise<RateList> {
    const nowMs = (): number => this.#clock.now().monotonicMs
    if (this.#rates === undefined || nowMs() - this.#rates.readMs > RATES_EVERY_MS) {
      const list = this.#open().then(({ client }) => readRates(client))
      // Until it has ended, all that ask wait for it: a slow store is not asked by each of them.
      const rates = { readMs: Number.POSITIVE_INFINITY, list }
      const ended = (): void => {
        rates.readMs = nowMs()
      }
      list.then(ended, ended)
      this.#rates = rates
    }
    return this.#rates.list
  }

  async leasesOf(lockName: string): Promise<readonly LeaseRecord[]> {
    const { client } = await this.#open()
    return (await readPages((query) => client.inspect(query), { lockName })).leases
  }

  /** How many leases were ended: none if the lock has a newer one. */
  async forceReleaseWithRecord({ lockName, leases, by, reason }: ForcedRelease): Promise<number> {
    const { driver } = await this.#open()
    const record = { by, reason, at: new Date(this.#clock.now().wallMs), ended: leases.map(({ holderId }) => holderId) }
    return forceReleaseWithRecord(driver, { lockName, leases, record })
  }

  async close(): Promise<void> {
    this.#closed = true
    const opened = await this.#opening?.catch(() => undefined)
    if (this.#source.driver === undefined) await opened?.driver.close()
  }

  #open(): Promise<Opened> {
    this.#opening ??= this.#connect().catch((error: unknown) => {
      this.#opening = undefined
      throw error
    })
    return this.#opening
  }

  async #connect(): Promise<Opened> {
    const { driver = await storeOpener.connect(this.#source.url as string) } = this.#source
    const options = { clock: this.#clock, random: systemRandom, callTimeoutMs: CALL_TIMEOUT_MS }
    const opened = { driver, client: new StoreClient(driver, options) }
    if (!this.#closed) this.#opened = opened
    return opened
  }
}

/** Either a URL or a driver. */
export interface StoreSource {
  readonly name?: string
  readonly url?: string
  readonly driver?: Driver
}

export interface ForcedRelease {
  readonly lockName: string
  readonly leases: readonly LeaseRecord[]
  readonly by: string
  readonly reason: string
}

interface Opened {
  readonly driver: Driver
  readonly client: StoreClient
}

function nameOf({ url, driver: passed }: StoreSource, driver = passed): string {
  if (driver?.place !== undefined) return withoutSecrets(driver.place)
  return url === undefined ? (driver?.name ?? 'store') : String(redactedUrl(url))
}

/** More are not shown. The page says so. */
const MAX_RECORDS = 50_000
const PAGE_SIZE = 1_000
const RATES_EVERY_MS = 900
