import type { Driver } from './core/driver.ts'
import { InvalidArgumentError } from './core/errors.ts'

/** Opens the driver that a URL names, importing that one only. Throws `InvalidArgumentError` for a scheme that there is none for. */
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
    throw new InvalidArgumentError('url', withoutPassword(url), `a store's URL, beginning with ${known.join(' or ')}`)
  }
}

const openers: Record<string, (url: string) => Promise<Driver>> = {
  memory: async (url) => (await import('./drivers/memory.ts')).openMemory(url),
  sqlite: async (url) => (await import('./drivers/sqlite.ts')).openSqlite(url),
}

/** An error is logged, and a log is no place for a password. */
function withoutPassword(url: unknown): unknown {
  return typeof url === 'string' ? url.replace(/\/\/[^@/]*@/, '//…@') : url
}
