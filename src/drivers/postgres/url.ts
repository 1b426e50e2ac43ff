import { InvalidArgumentError } from '../../core/errors.ts'
import { nearestName } from '../../core/options.ts'
import {
  booleanParameter,
  checkPort,
  decoded,
  type HostPort,
  hostPort,
  knownParameters,
  type Parameter,
  secondsParameter,
  shownName,
  type UrlParts,
  urlParts,
} from '../shared/url.ts'

/** The database that a URL names, and the parameters for the client. */
export interface PostgresTarget {
  /** A host name, an address, or the folder of a Unix socket. */
  readonly host: string
  readonly port: number
  readonly database: string
  readonly user: string | undefined
  readonly password: string | undefined
  readonly connectSeconds: number | undefined
  /** Parameters of the client. Which ones it knows depends on the client. */
  readonly parameters: readonly Parameter[]
}

/**
 * Parses `postgres://user:password@host:port/database?…`. The URL must identify the database completely. A client
 * would take a missing part from its environment, which may differ from process to process.
 */
export function postgresUrl(url: string) {
  const parts = urlParts(url, 'postgres://user:password@host:5432/database')
  const isOurs = ({ name }: Parameter): boolean => OURS.some((each) => each === name) || name.startsWith('holdfast_')
  const values = knownParameters(parts.parameters.filter(isOurs), OURS)
  const migrate = booleanParameter('holdfast_migrate', values.holdfast_migrate)
  const target: PostgresTarget = {
    ...placeOf(parts, values),
    database: databaseOf(parts),
    user: parts.username,
    password: parts.password,
    connectSeconds: secondsParameter('connect_timeout', values.connect_timeout, 3_600),
    parameters: parts.parameters.filter((parameter) => !isOurs(parameter)),
  }
  const { holdfast_schema: schema, holdfast_durability: durability } = values
  const options = {
    ...(schema !== undefined && { schema }),
    // Checked together with the options of a caller.
    ...(durability !== undefined && { durability: durability as 'crash-safe' | 'relaxed' }),
    ...(migrate !== undefined && { migrate }),
  }
  return { target, options }
}

const OURS = ['holdfast_schema', 'holdfast_durability', 'holdfast_migrate', 'connect_timeout', 'host', 'port'] as const

/** In front of the path or, for a Unix socket, in parameters: `postgres:///database?host=/var/run/postgresql`. */
function placeOf({ hosts }: UrlParts, { host, port }: { host?: string; port?: string }): HostPort {
  const [first = ''] = hosts
  const portFrom = (text: string | undefined): number => (text === undefined ? DEFAULT_PORT : checkPort(text))
  if (hosts.length > 1) {
    const rule =
      'one host: which of several is used may differ from client to client. Pass a client of your own instead'
    throw new InvalidArgumentError('url host', `${hosts.length} hosts`, rule)
  }
  if (first === '' && host?.startsWith('/')) return { host, port: portFrom(port) }
  if (host !== undefined || port !== undefined) {
    const rule = 'the folder of a Unix socket, where the URL names no host before its path'
    throw new InvalidArgumentError('url parameter host', host, rule)
  }
  const [, folder, socketPort] = /^(%2f[^:]*)(?::(.*))?$/i.exec(first) ?? []
  if (folder === undefined) return hostPort(first, DEFAULT_PORT)
  return { host: decoded('url host', folder), port: portFrom(socketPort) }
}

function databaseOf({ path, shownPath }: UrlParts): string {
  if (path === undefined) {
    const rule = 'named after the host, as in postgres://host/database: different clients choose different defaults'
    throw new InvalidArgumentError('url database', undefined, rule)
  }
  const database = decoded('url database', path)
  // pg does not decode %3F and %23.
  if (!path.includes('/') && !/[?#\0]/.test(database)) return database
  const rule = 'the name of a database, without ? and #, and with / as %2F'
  throw new InvalidArgumentError('url database', shownPath, rule)
}

/** The options for `Pool` of pg. Its own parser reads the URL exactly as it was read here. */
export function pgConfig(target: PostgresTarget): { connectionString: string; connectionTimeoutMillis?: number } {
  const { host, port, database, user, password, connectSeconds } = target
  const login = user === undefined && password === undefined ? '' : `${encoded(user)}:${encoded(password)}@`
  const place = host.startsWith('/') ? encodeURIComponent(host) : host.includes(':') ? `[${host}]` : host
  const known = clientParameters(target, 'pg', PG)
  const asLibpq = known.some(({ name, value }) => name === 'uselibpqcompat' && value === 'true')
  const parameters = known.map((parameter) => pgParameter(parameter, asLibpq))
  const search = parameters.length === 0 ? '' : `?${parameters.join('&')}`
  return {
    connectionString: `postgres://${login}${place}:${port}/${encodeURI(database)}${search}`,
    ...(connectSeconds !== undefined && { connectionTimeoutMillis: connectSeconds * 1_000 }),
  }
}

/**
 * pg takes the text `false` as true. To pg 8, `prefer`, `require` and `verify-ca` mean `verify-full`, and it warns that
 * pg 9 will verify less. They are passed on as `verify-full`, so that no version weakens them.
 */
function pgParameter({ name, value, raw }: Parameter, asLibpq: boolean): string {
  if (name === 'ssl' && value === 'false') return 'ssl=0'
  const verifies = name === 'sslmode' && ['prefer', 'require', 'verify-ca'].includes(value)
  return verifies && !asLibpq ? 'sslmode=verify-full' : raw
}

/** The arguments for `postgres()`. It prefers the options to the parts of the URL. */
export function postgresConfig(target: PostgresTarget): { url: string; options: object } {
  const { host, port, database, user, password, connectSeconds } = target
  const parameters = clientParameters(target, 'postgres', POSTGRES).map(({ raw }) => raw)
  return {
    url: `postgres://${PLACEHOLDER}/${PLACEHOLDER}?${parameters.join('&')}`,
    options: {
      ...(host.startsWith('/') ? { path: `${host}/.s.PGSQL.${port}` } : { host: [host], port: [port] }),
      database,
      ...(user !== undefined && { user }),
      ...(password !== undefined && { password }),
      ...(connectSeconds !== undefined && { connect_timeout: connectSeconds }),
    },
  }
}

/** The database, as errors name it. */
export function postgresPlace({ host, port, database }: Pick<PostgresTarget, 'host' | 'port' | 'database'>): string {
  if (host.startsWith('/')) return `postgres:///${database}?host=${host}`
  return `postgres://${host.includes(':') ? `[${host}]` : host}:${port}/${database}`
}

const PLACEHOLDER = 'see-options'

type Rules = Readonly<Record<string, readonly string[] | undefined>>

/**
 * The parameters for the client, without those that are ignored here. Refuses others that the client would ignore, and
 * values that it is known to ignore.
 */
function clientParameters(target: PostgresTarget, client: string, rules: Rules): readonly Parameter[] {
  const parameters = target.parameters.filter(({ name }) => !IGNORED.has(name))
  for (const { name, value, raw } of parameters) {
    if (!Object.hasOwn(rules, name)) {
      const known = [...OURS, ...Object.keys(rules)]
      const meant = nearestName(name, known)
      const hint = meant === undefined ? '' : ` (did you mean ${meant}?)`
      const rule = `one that is known here or to ${client}: ${known.join(', ')}${hint}`
      throw new InvalidArgumentError('url parameter', shownName({ name, raw }), rule)
    }
    const allowed = rules[name]
    if (allowed !== undefined && !allowed.includes(value)) {
      throw new InvalidArgumentError(`url parameter ${name}`, value, `one of ${allowed.join(', ')}, for ${client}`)
    }
  }
  const both = ['ssl', 'sslmode'].every((name) => parameters.some((each) => each.name === name))
  if (both) throw new InvalidArgumentError('url parameter ssl', 'beside sslmode', 'left out where sslmode is given')
  return parameters
}

/** `undefined`: any value. */
const COMMON: Rules = {
  application_name: undefined,
  options: undefined,
  statement_timeout: undefined,
  lock_timeout: undefined,
  idle_in_transaction_session_timeout: undefined,
  sslnegotiation: ['postgres', 'direct'],
}
const PG: Rules = {
  ...COMMON,
  fallback_application_name: undefined,
  ssl: ['true', 'false', 'no-verify'],
  sslmode: ['disable', 'prefer', 'require', 'verify-ca', 'verify-full', 'no-verify'],
  sslcert: undefined,
  sslkey: undefined,
  sslrootcert: undefined,
  uselibpqcompat: ['true', 'false'],
}
const POSTGRES: Rules = {
  ...COMMON,
  ssl: ['true', 'false'],
  sslmode: ['disable', 'allow', 'prefer', 'require', 'verify-full'],
  sslrootcert: ['system'],
  prepare: ['true', 'false'],
}

/**
 * What hosts and other clients put into a URL, and what changes neither the database nor how the server is verified:
 * settings of Prisma, of poolers, and of libpq that pg and postgres do not have.
 */
const IGNORED: ReadonlySet<string> = new Set([
  ...['schema', 'connection_limit', 'pool_timeout', 'socket_timeout', 'statement_cache_size', 'pgbouncer', 'sslaccept'],
  ...['channel_binding', 'supa', 'workaround', 'gssencmode', 'krbsrvname', 'client_encoding'],
  ...['keepalives', 'keepalives_idle', 'keepalives_interval', 'keepalives_count', 'tcp_user_timeout'],
])

const encoded = (text: string | undefined): string => (text === undefined ? '' : encodeURIComponent(text))

const DEFAULT_PORT = 5432
