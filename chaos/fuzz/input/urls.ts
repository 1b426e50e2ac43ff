import type { Draw } from '../../draw.ts'
import type { Library } from '../../wire/library.ts'
import type { Judge } from '../judge.ts'
import { ODD_TEXTS } from '../odd.ts'

/** The halves of every password: what is between them may be escaped in many ways. */
const HALVES = ['Zq7xA', 'Kw9vB'] as const

/** A URL of any scheme that may be wrong in any part. Its password is a secret of the case. */
export function oddUrl(draw: Draw, judge: Judge): string {
  const between = draw.one([
    ...'/@:?#%& "\'\\$+=;,|<>[]{}^`~!*().üé',
    '',
    '//',
    '@@',
    '%40',
    '%',
    '%zz',
    '\\@',
    '\n',
    '\0',
  ])
  const password = HALVES.join(between)
  const written = draw.chance(0.6) ? encodeURIComponent(password) : password
  const logins = [`me:${written}@`, `:${written}@`, `me:${written}:x@`, `${written}@`]
  // What follows the last @ is the host.
  const login = draw.one(written.includes('@') ? logins : [...logins, `me:${written}`])
  const scheme = draw.one(SCHEMES)
  const host = draw.one(HOSTS)
  const port = draw.one(['', ':1', ':1', ':0', ':65536', ':99999999999', ':-1', ':x', ':1:2', ': 1'])
  const path = draw.one(['', '', '/', '/0', '/x', '/-1', '/99999', '/a/b', '/%2f', '/%', `/${encodeURIComponent('ü')}`])
  const search = draw.one(['', '', `?${parameters(draw, written)}`])
  const hosts = draw.chance(0.2) ? `${host}${port},${draw.one(HOSTS)}:1,127.0.0.1:1` : `${host}${port}`
  const slashes = draw.weighted([
    ['//', 12],
    ['', 1],
    ['/', 1],
    ['///', 1],
  ])
  // Otherwise it is a path, or a text of any kind.
  if (slashes === '//') for (const half of HALVES) judge.keepSecret(half)
  return `${scheme}:${slashes}${login}${hosts}${path}${search}${draw.chance(0.05) ? draw.one(ODD_TEXTS) : ''}`
}

const SCHEMES: readonly string[] = [
  ...['redis', 'rediss', 'redis+cluster', 'rediss+cluster', 'valkey', 'redlock', 'postgres', 'postgresql', 'REDIS'],
  ...['postgres+advisory', 'memory', 'sqlite', 'mysql', 'http', 'redis-sentinel', '', 'constructor', '__proto__'],
]

/** Nothing listens at any of them. */
const HOSTS: readonly string[] = ['127.0.0.1', '127.0.0.1', 'localhost', '[::1]', '[zz]', '', '256.1.1.1', 'a b', '%31']

function parameters(draw: Draw, password: string): string {
  const names = [
    'sslmode',
    'tls',
    'holdfast_schema',
    'holdfast_migrate',
    'prefix',
    'nonsense',
    'password',
    'user',
    'db',
  ]
  const values = ['', 'require', 'maybe', 'true', '1', '%', 'a+b', password, 'x'.repeat(5_000)]
  const each = (): string => `${draw.one(names)}=${draw.one(values)}`
  const one = each()
  return draw.one([one, `${one}&${each()}`, `${one}&${one}`, '&&', '=', '=x', `${each()}&${each()}&${each()}`])
}

/** Opens the store and uses it once. Everything that fails on the way is judged. */
export async function useUrl(library: Library, judge: Judge, url: string): Promise<void> {
  // Otherwise it is the path of a file, which would be created wherever it says.
  if (/^sqlite:(?!\/\/[^/])/i.test(url)) return
  const expected = { refuses: [], boundMs: 20_000 }
  const driver = await judge.settles('connect', () => library.connect(url), expected)
  await judge.settles('DistributedLock', () => new library.DistributedLock({ url }).close(), expected)
  if (driver === undefined) return
  judge.checkSecrets('the place of the driver', driver.place)
  if (url.includes(':1') && driver.name !== 'sqlite') {
    const lock = new library.DistributedLock({ driver, callTimeoutSeconds: 0.5 })
    for (const event of ['releaseFailed', 'listenFailed', 'renewalFailed'] as const) {
      lock.on(event, (told) => judge.checkSecrets(`the event ${event}`, told))
    }
    await judge.settles('acquire', () => lock.acquire('fuzz', { timeoutSeconds: 1 }), expected)
    await judge.settles('close', () => lock.close(), expected)
  }
  await judge.settles('close', () => driver.close(), expected)
}
