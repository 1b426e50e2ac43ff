import type { EventEmitter } from 'node:events'
import type { DistributedLock, Driver, RateLimiter, ReadWriteLock, Semaphore } from 'holdfast'
import { load } from '../connect.ts'
import type { Draw } from '../draw.ts'
import { listenersOf } from './process-state.ts'
import type { Rests } from './rests.ts'
import type { Tally } from './tally.ts'

export type DriverName = 'redis' | 'postgres'
export type Library = typeof import('holdfast')

export interface ClientSettings {
  /** The built package under test. */
  dist: string
  driver: DriverName
  url: string
  seed: string
  /** How many leases to keep. */
  leases: number
  longestTtlSeconds: number
}

/** What the tasks of a client use. All of it lives as long as the process works. */
export interface World {
  readonly settings: ClientSettings
  readonly library: Library
  readonly lock: DistributedLock
  readonly sharing: ReadWriteLock
  /** Enough permits for all tasks, and few. */
  readonly wide: Semaphore
  readonly narrow: Semaphore
  readonly rate: RateLimiter
  readonly application: Application
  readonly tally: Tally
  readonly rests: Rests
  /** Closes everything but the application's client. */
  close(): Promise<void>
}

/** The application's own client of the store, and a driver that uses it. */
export interface Application {
  openDriver(): Driver
  /** How many listeners the client has beyond those that it had after its first driver was closed. */
  listeners(): number
  close(): Promise<void>
}

export interface Task {
  readonly world: World
  readonly draw: Draw
  readonly number: number
  /** An abort signal that lives as long as the process, such as that of a shutdown. */
  readonly shutdown: AbortSignal
}

export interface WorldOptions {
  settings: ClientSettings
  tally: Tally
  rests: Rests
}

export const NARROW_LIMIT = 3

export async function openWorld({ settings, tally, rests }: WorldOptions): Promise<World> {
  const library = await load<Library>(settings, 'index.js')
  const { DistributedLock, ReadWriteLock, Semaphore, RateLimiter, connect } = library
  const driver = await connect(settings.url)
  const instances = {
    lock: new DistributedLock({ driver }),
    sharing: new ReadWriteLock({ driver }),
    wide: new Semaphore({ driver, limit: settings.leases }),
    narrow: new Semaphore({ driver, limit: NARROW_LIMIT }),
    rate: new RateLimiter({ driver, limits: { limit: 20, periodSeconds: 2, burst: 5 } }),
  }
  const application = await openApplication(settings)
  return {
    settings,
    library,
    ...instances,
    application,
    tally,
    rests,
    async close() {
      await Promise.all(Object.values(instances).map((each) => each.close()))
      await driver.close()
    },
  }
}

async function openApplication(settings: ClientSettings): Promise<Application> {
  if (settings.driver === 'redis') {
    const { redisDriver } = await load<typeof import('holdfast/drivers/redis')>(settings, 'drivers/redis.js')
    const { Redis } = await import('ioredis')
    const client = new Redis(settings.url, { retryStrategy: () => 100 })
    client.on('error', () => {})
    await client.ping()
    return applicationOn(client, { openDriver: () => redisDriver({ client }), close: () => client.quit() })
  }
  const { postgresDriver } = await load<typeof import('holdfast/drivers/postgres')>(settings, 'drivers/postgres.js')
  const { default: pg } = await import('pg')
  const client = new pg.Pool({ connectionString: settings.url, max: 3 })
  client.on('error', () => {})
  return applicationOn(client, { openDriver: () => postgresDriver({ client }), close: () => client.end() })
}

/** The first driver on a client adds up to three listeners, which stay for all drivers to come. */
async function applicationOn(
  client: EventEmitter,
  { openDriver, close }: { openDriver(): Driver; close(): Promise<unknown> },
): Promise<Application> {
  await openDriver().close()
  const first = listenersOf(client)
  return { openDriver, listeners: () => listenersOf(client) - first, close: async () => void (await close()) }
}
