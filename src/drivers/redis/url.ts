import { InvalidArgumentError } from '../../core/errors.ts'
import {
  booleanParameter,
  type HostPort,
  hostPort,
  knownParameters,
  secondsParameter,
  type UrlParts,
  urlParts,
} from '../shared/url.ts'
import { checkPrefix } from './keys.ts'

/** The servers of a URL, and the login. */
export interface RedisTarget {
  /** One server, or some nodes of a Cluster, from which the client finds the others. */
  readonly hosts: readonly HostPort[]
  readonly cluster: boolean
  readonly tls: boolean
  readonly username: string | undefined
  readonly password: string | undefined
  readonly database: number
}

export interface RedisUrl {
  readonly target: RedisTarget
  readonly prefix: string
}

/**
 * `redis://user:password@host:port/database?prefix=…`, `redis+cluster://host:port,host:port`, with `rediss` for TLS.
 * `valkey` and `valkeys` mean the same as `redis` and `rediss`.
 */
export function redisUrl(url: string): RedisUrl {
  const parts = urlParts(url, 'redis://host:6379/0')
  const [, tls, plusCluster] = /^(?:redis|valkey)(s)?(\+cluster)?$/.exec(parts.scheme) ?? []
  const cluster = plusCluster !== undefined
  const hosts = parts.hosts.map((host) => hostPort(host, DEFAULT_PORT))
  if (!cluster && hosts.length > 1) {
    const rule = 'one host; several are a redis+cluster:// or a redlock:// URL'
    throw new InvalidArgumentError('url host', `${hosts.length} hosts`, rule)
  }
  const { prefix = 'lock:' } = knownParameters(parts.parameters, ['prefix'])
  checkPrefix(prefix)
  const database = databaseOf(parts)
  if (cluster && database !== 0) {
    throw new InvalidArgumentError('url database', database, '0 on a Cluster, which has no other database')
  }
  return { target: { hosts, cluster, tls: tls !== undefined, database, ...loginOf(parts) }, prefix }
}

export interface RedlockUrl {
  /** One target for each node. */
  readonly targets: readonly RedisTarget[]
  readonly prefix: string
  readonly persistent: boolean
  readonly longestTtlSeconds: number | undefined
}

/** `redlock://user:password@host:port,host:port/database?prefix=…&tls=true&persistent=true&longestTtlSeconds=60`. */
export function redlockUrl(url: string): RedlockUrl {
  const parts = urlParts(url, 'redlock://one:6379,two:6379,three:6379')
  const values = knownParameters(parts.parameters, ['prefix', 'tls', 'longestTtlSeconds', 'persistent'])
  const { prefix = 'lock:' } = values
  checkPrefix(prefix)
  const hosts = parts.hosts.map((host) => hostPort(host, DEFAULT_PORT))
  refuseTwice(hosts)
  const tls = booleanParameter('tls', values.tls) ?? false
  const login = { cluster: false, tls, database: databaseOf(parts), ...loginOf(parts) }
  return {
    targets: hosts.map((host) => ({ hosts: [host], ...login })),
    prefix,
    persistent: booleanParameter('persistent', values.persistent) ?? false,
    longestTtlSeconds: secondsParameter('longestTtlSeconds', values.longestTtlSeconds, 1_000_000_000),
  }
}

function databaseOf({ path = '0', shownPath }: UrlParts): number {
  const number = /^(?:0|[1-9]\d{0,4})$/.test(path) ? Number(path) : Number.NaN
  if (number <= MAX_DATABASE) return number
  throw new InvalidArgumentError('url database', shownPath, `a whole number from 0 to ${MAX_DATABASE}`)
}

function loginOf({ username, password }: UrlParts): Pick<RedisTarget, 'username' | 'password'> {
  // Some clients would log in as the default user without an error.
  if (username !== undefined && password === undefined) {
    // The value is not shown: it is often a password without the colon.
    throw new InvalidArgumentError('url user name', '…', 'followed by a password: user:password@, or :password@')
  }
  return { username, password }
}

/** A server with two votes could be a quorum on its own. */
function refuseTwice(hosts: readonly HostPort[]): void {
  const known = new Set<string>()
  for (const { host, port } of hosts) {
    const server = `${comparable(host)} ${port}`
    if (known.has(server)) {
      const rule = 'another server for each node: a server with two votes could be a quorum on its own'
      throw new InvalidArgumentError('url host', `${host}:${port}, twice`, rule)
    }
    known.add(server)
  }
}

/** The names of the local machine count as one host. */
function comparable(host: string): string {
  const name = host.replace(/\.$/, '')
  const [, high, low] = /^::ffff:([\da-f]+):([\da-f]+)$/.exec(name) ?? []
  if (high !== undefined && low !== undefined) {
    const bytes = [high, low].map((each) => Number.parseInt(each, 16)).flatMap((each) => [each >> 8, each & 0xff])
    return comparable(bytes.join('.'))
  }
  return SELF.has(name) ? 'localhost' : name
}

const SELF = new Set(['localhost', '127.0.0.1', '0.0.0.0', '::1', '::'])
const DEFAULT_PORT = 6379
/** Far more than a server has. The default is 16. */
const MAX_DATABASE = 65_535
