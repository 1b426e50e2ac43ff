import type { CreateHeartbeat } from './core/claim/holder.ts'
import type { Driver } from './core/driver.ts'
import { InvalidArgumentError } from './core/errors.ts'
import { type ThreadOptions, threadHeartbeat } from './core/lease/heartbeat-thread.ts'
import { nearestName } from './core/options.ts'
import { redactedUrl } from './core/secrets.ts'

/**
 * Opens the driver that a URL names. Imports only that driver. You close it.
 *
 * @throws `InvalidArgumentError` for an unknown scheme, and for any part of the URL that the driver does not
 * understand. This happens before a connection is opened
 * @throws `MissingClientError` if the driver needs a client package that is not installed
 * @throws `StoreError` for a SQLite file that cannot be used, and for a Redis Cluster that cannot be reached. If any
 * other store cannot be reached, the first call rejects
 *
 * @example
 * ```ts
 * const driver = await connect('redis://localhost:6379')
 * const lock = new DistributedLock({ driver })
 * ```
 */
export async function connect(url: string): Promise<Driver> {
  checkUrl(url)
  const open = openers[schemeOf(url)] as (url: string) => Promise<Driver>
  return open(url)
}

/**
 * Returns the URL of the store: `url`, or else `HOLDFAST_URL`, or else the embedded default.
 *
 * @throws `InvalidArgumentError` for an unknown scheme, and if `HOLDFAST_URL` is empty. A script that copies an unset
 * variable sets it to an empty text, and the default would then exclude only the processes of this machine.
 */
export function chooseUrl(url?: string): string {
  const chosen = url ?? process.env['HOLDFAST_URL'] ?? 'sqlite:'
  if (url === undefined && chosen === '') {
    throw new InvalidArgumentError('HOLDFAST_URL', chosen, 'the URL of a store, or not set')
  }
  checkUrl(chosen)
  return chosen
}

/** Checks a URL's scheme, so that a constructor rejects at once what `connect` would reject later. */
export function checkUrl(url: unknown): asserts url is string {
  if (!namesStore(url)) {
    const schemes = Object.keys(openers)
    const meant = nearestName(schemeOf(url), schemes)
    const hint = meant === undefined ? '' : ` (did you mean ${meant}:?)`
    const known = schemes.map((each) => `${each}:`).join(' or ')
    throw new InvalidArgumentError('url', redactedUrl(url), `the URL of a store, beginning with ${known}${hint}`)
  }
}

/** Whether `url` begins with a known scheme. */
export const namesStore = (url: unknown): url is string => Object.hasOwn(openers, schemeOf(url))

/** The scheme in lower case, or an empty string. */
const schemeOf = (url: unknown): string =>
  typeof url === 'string' ? url.slice(0, Math.max(0, url.indexOf(':'))).toLowerCase() : ''

type Opener = (url: string) => Promise<Driver>

const memory: Opener = async (url) => (await import('./drivers/memory.ts')).openMemory(url)
const sqlite: Opener = async (url) => (await import('./drivers/sqlite.ts')).openSqlite(url)
const postgres: Opener = async (url) => (await import('./drivers/postgres.ts')).openPostgres(url)
const advisory: Opener = async (url) => (await import('./drivers/postgres-advisory.ts')).openPostgresAdvisory(url)
const redis: Opener = async (url) => (await import('./drivers/redis.ts')).openRedis(url)
const redlock: Opener = async (url) => (await import('./drivers/redlock.ts')).openRedlock(url)

const openers: Record<string, Opener> = {
  memory,
  sqlite,
  postgres,
  postgresql: postgres,
  'postgres+advisory': advisory,
  'postgresql+advisory': advisory,
  redis,
  rediss: redis,
  'redis+cluster': redis,
  'rediss+cluster': redis,
  valkey: redis,
  valkeys: redis,
  'valkey+cluster': redis,
  'valkeys+cluster': redis,
  redlock,
}

/** A driver that instances of this process share. */
export interface SharedDriver {
  readonly driver: Driver
  /** Lets go of the driver. The last instance that does so closes it. */
  release(): Promise<void>
}

/**
 * Opens the driver of a URL for an instance. Instances with the same URL share one driver and its connections, so an
 * instance costs little: a service may create one for each request.
 *
 * @throws what `connect` throws. The next call tries again.
 */
export async function share(url: string): Promise<SharedDriver> {
  // A relative path names another file in another folder.
  const key = /^sqlite:[^/]/i.test(url) ? `${url} in ${process.cwd()}` : url
  let store = stores.get(key)
  if (store === undefined) {
    store = { opening: connect(url), users: 0 }
    stores.set(key, store)
  }
  const { opening } = store
  const used = store
  const leave = (): boolean => {
    used.users -= 1
    const isLast = used.users === 0
    if (isLast && stores.get(key) === used) stores.delete(key)
    return isLast
  }
  used.users += 1
  const driver = await opening.catch((error: unknown) => {
    leave()
    throw error
  })
  let released: Promise<void> | undefined
  return {
    driver,
    release() {
      released ??= leave() ? driver.close() : Promise.resolve()
      return released
    },
  }
}

/** The drivers that instances have opened, by URL. */
const stores = new Map<string, { readonly opening: Promise<Driver>; users: number }>()

/**
 * What `holdfast` adds to `holdfast/lock`: stores that are opened by their URL, and the heartbeat's thread. It is
 * passed in, because it would be most of the code in a bundle of `holdfast/lock`.
 */
export interface StoreOpener {
  chooseUrl(url?: string): string
  checkUrl(url: unknown): void
  connect(url: string): Promise<Driver>
  share(url: string): Promise<SharedDriver>
  threadHeartbeat(options: ThreadOptions): CreateHeartbeat
}

export const storeOpener: StoreOpener = { chooseUrl, checkUrl, connect, share, threadHeartbeat }
