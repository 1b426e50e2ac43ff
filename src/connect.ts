import type { Driver } from './core/driver.ts'
import { InvalidArgumentError } from './core/errors.ts'
import { redactedUrl } from './core/secrets.ts'

/**
 * Opens the driver that a URL names, importing that one only.
 *
 * @throws `InvalidArgumentError` for an unknown scheme, and for any part of the URL that the driver does not understand,
 * before anything is opened.
 */
export async function connect(url: string): Promise<Driver> {
  checkUrl(url)
  const open = openers[schemeOf(url)] as (url: string) => Promise<Driver>
  return open(url)
}

/**
 * The store that is meant: the one named, else by the environment, else the embedded default.
 *
 * @throws `InvalidArgumentError` for a `HOLDFAST_URL` that is empty, as a script makes it from another variable that is
 * not set: the default would then exclude only the processes of this machine.
 */
export function chooseUrl(url?: string): string {
  if (url !== undefined) return url
  const named = process.env['HOLDFAST_URL'] ?? 'sqlite:'
  if (named !== '') return named
  throw new InvalidArgumentError('HOLDFAST_URL', named, 'a store’s URL, or not set at all')
}

/** So that a constructor can refuse at once what `connect` would refuse later. */
export function checkUrl(url: unknown): asserts url is string {
  if (!namesStore(url)) {
    const known = Object.keys(openers).map((each) => `${each}:`)
    throw new InvalidArgumentError('url', redactedUrl(url), `a store's URL, beginning with ${known.join(' or ')}`)
  }
}

/** Whether it begins as the URL of a store does. */
export const namesStore = (url: unknown): url is string => Object.hasOwn(openers, schemeOf(url))

/** In lower case, as in every URL. Empty if there is none. */
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
