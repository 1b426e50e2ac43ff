import type { LeaderElection, DistributedLock as Lock, RateLimiter, ReadWriteLock, Semaphore } from 'holdfast'
import type { ClientSettings, Work } from './client-settings.ts'
import { load, storeOf } from './connect.ts'
import { type OnlyConnection, openOnlyConnection } from './only-connection.ts'

/** The limits of the semaphore and of the rate limiter, which all clients share. */
export const PERMITS = 3
export const RATE = { limit: 20, periodSeconds: 2, burst: 5 }

/** What a client uses. What the driver cannot do is absent. */
export interface Store {
  lock: Lock
  sharing?: ReadWriteLock
  permits?: Semaphore
  election?: LeaderElection
  rate?: RateLimiter
  /** Where the application has a single connection, which the driver is on. */
  connection?: OnlyConnection
}

/** The names of the locks and limits that are not `settings.names`. */
export const NAMES = { sharing: 'page', permits: 'pool', election: 'leader', rate: 'rate' }

/** Opens what the settings give a weight, each through its own connections if they connect by URL. */
export async function openStore(settings: ClientSettings, work: Readonly<Record<Work, number>>): Promise<Store> {
  const { callTimeoutSeconds, waiterTtlSeconds, ttlSeconds } = settings
  const holdfast = await load<typeof import('holdfast')>(settings, 'index.js')
  const connection = settings.through === 'pg-client' ? await openOnlyConnection(settings) : undefined
  const store = connection === undefined ? await storeOf(settings) : { driver: connection.driver }
  const rateOptions = { ...store, callTimeoutSeconds }
  const options = { ...rateOptions, waiterTtlSeconds }
  const election = { ...options, name: NAMES.election, timeoutSeconds: ttlSeconds.most }
  return {
    lock: new holdfast.DistributedLock(options),
    ...(work.sharing > 0 && { sharing: new holdfast.ReadWriteLock(options) }),
    ...(work.permits > 0 && { permits: new holdfast.Semaphore({ ...options, limit: PERMITS }) }),
    ...(work.election > 0 && { election: new holdfast.LeaderElection(election) }),
    ...(work.rate > 0 && { rate: new holdfast.RateLimiter({ ...rateOptions, limits: RATE }) }),
    ...(connection && { connection }),
  }
}

/** Mostly locks. Redlock and advisory locks have no limits: see `capabilities` of the drivers. */
export function workOf({ driver, work = {} }: ClientSettings): Record<Work, number> {
  const counts = driver !== 'redlock' && driver !== 'advisory'
  const { lock = 10, sharing = 3, permits = 2, election = 1, rate = 2 } = work
  return { lock, sharing, permits: counts ? permits : 0, election, rate: counts ? rate : 0 }
}
