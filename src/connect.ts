import { redactedUrl } from './core/arguments.ts'
import type { Driver } from './core/driver.ts'
import { InvalidArgumentError } from './core/errors.ts'

/**
 * Opens the driver that a URL names, importing that one only.
 *
 * @throws `InvalidArgumentError` for an unknown scheme, and for any part of the URL that the driver does not understand,
 * before anything is opened.
 */
export async function connect(url: string): Promise<Driver> {
  checkUrl(url)
  const [scheme] = url.split(':', 1) as [string]
  const open = openers[scheme] as (url: string) => Promise<Driver>
  return open(url)
}

/** The store that is meant: the one named, else by the environment, else the embedded default. */
export const chooseUrl = (url?: string): string => url ?? process.env['HOLDFAST_URL'] ?? 'sqlite:'

/** So that a constructor can refuse at once what `connect` would refuse later. */
export function checkUrl(url: unknown): asserts url is string {
  const scheme = typeof url === 'string' && url.includes(':') ? url.slice(0, url.indexOf(':')) : ''
  if (!Object.hasOwn(openers, scheme)) {
    const known = Object.keys(openers).map((each) => `${each}:`)
    throw new InvalidArgumentError('url', redactedUrl(url), `a store's URL, beginning with ${known.join(' or ')}`)
  }
}

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
  redlock,
}
