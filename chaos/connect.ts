import { pathToFileURL } from 'node:url'
import type { Driver } from 'holdfast'

/** The store under test, and how a client process connects to it. */
export interface StoreSettings {
  /** The built package under test. */
  dist: string
  driver: 'redis' | 'redlock' | 'cluster' | 'postgres' | 'advisory' | 'sqlite' | 'memory'
  /**
   * How the driver connects: through a URL, or through a client of one of these packages. `pg` is a pool, and
   * `pg-client` is the only connection of its process.
   */
  through: 'url' | 'ioredis' | 'redis' | 'pg' | 'pg-client' | 'postgres' | 'redis.asyncio' | 'asyncpg' | 'psycopg'
  /** One port for a server, one for each node of redlock, of a Cluster or behind Sentinel, none for a file. */
  ports: number[]
  /** The ports that a Cluster and Sentinel announce, in the order of `ports`, which lead this client to them. */
  announcedPorts?: number[]
  /** Redis behind Sentinel. */
  sentinel?: { masterName: string; ports: number[] }
  /** The file of sqlite. */
  path?: string
  ttlSeconds: { least: number; most: number }
  nodeTimeoutSeconds: number
  callTimeoutSeconds: number
  waiterTtlSeconds: number
  /** A grant counts only when all replicas have confirmed it: one behind an address, two behind Sentinel. */
  confirmed: boolean
}

/** The database of PostgreSQL with the locks. */
export const DATABASE = 'chaos'

/** The option with which every primitive of the package opens the store. */
export async function storeOf(settings: StoreSettings): Promise<{ url: string } | { driver: Driver }> {
  return settings.through === 'url' ? { url: urlOf(settings) } : { driver: await openDriver(settings) }
}

/** The harness itself uses it, too, with the servers' own ports. */
export function urlOf({
  driver,
  ports,
  path,
  ttlSeconds,
}: Pick<StoreSettings, 'driver' | 'ports' | 'path' | 'ttlSeconds'>) {
  const hosts = ports.map((port) => `127.0.0.1:${port}`).join(',')
  switch (driver) {
    case 'memory':
      return 'memory:'
    case 'sqlite':
      return `sqlite:${path}`
    case 'postgres':
      return `postgres://postgres@${hosts}/${DATABASE}`
    case 'advisory':
      return `postgres+advisory://postgres@${hosts}/${DATABASE}`
    case 'redis':
      return `redis://${hosts}`
    case 'cluster':
      return `redis+cluster://${hosts}`
    case 'redlock':
      return `redlock://${hosts}?longestTtlSeconds=${ttlSeconds.most}`
  }
}

async function openDriver(settings: StoreSettings): Promise<Driver> {
  const { driver, ports, through, nodeTimeoutSeconds, ttlSeconds } = settings
  if (driver === 'postgres' || driver === 'advisory') return openPostgres(settings)
  const isIoredis = through === 'ioredis'
  if (driver === 'cluster') {
    return onRedis(settings, isIoredis ? await openIoredisCluster(settings) : await openNodeCluster(settings))
  }
  if (settings.sentinel !== undefined) {
    return onRedis(settings, isIoredis ? await openIoredisSentinel(settings) : await openNodeSentinel(settings))
  }
  const isNode = driver === 'redlock'
  const nodes = await Promise.all(
    ports.map(async (port) =>
      onRedis(settings, isIoredis ? await openIoredis(port, isNode) : await openNodeRedis(port, isNode)),
    ),
  )
  if (!isNode) return nodes[0] as Driver
  const { redlockDriver } = await load<typeof import('holdfast/drivers/redlock')>(settings, 'drivers/redlock.js')
  return redlockDriver({ nodes, nodeTimeoutSeconds, longestTtlSeconds: ttlSeconds.most })
}

type RedisClient = Parameters<typeof import('holdfast/drivers/redis').redisDriver>[0]['client']

async function onRedis(settings: StoreSettings, client: RedisClient) {
  const { redisDriver } = await load<typeof import('holdfast/drivers/redis')>(settings, 'drivers/redis.js')
  const count = settings.sentinel === undefined ? 1 : 2
  const replicas = settings.confirmed && { replicas: { count, waitSeconds: 1 } }
  return redisDriver({ client, onWarning() {}, ...replicas })
}

/** How often a client tries to reach a server that is down. */
const RECONNECT_MS = 100

async function openIoredis(port: number, isNode: boolean) {
  const { Redis } = await import('ioredis')
  const client = new Redis({
    port,
    host: '127.0.0.1',
    retryStrategy: () => RECONNECT_MS,
    ...(isNode && { maxRetriesPerRequest: 0 }),
  })
  return client.on('error', () => {})
}

async function openIoredisSentinel({ sentinel, ...settings }: StoreSettings) {
  const { Redis } = await import('ioredis')
  const client = new Redis({
    sentinels: (sentinel?.ports ?? []).map(addressOf),
    name: sentinel?.masterName ?? '',
    natMap: proxiesOf(settings),
    sentinelRetryStrategy: () => RECONNECT_MS,
    retryStrategy: () => RECONNECT_MS,
  })
  return client.on('error', () => {})
}

async function openIoredisCluster(settings: StoreSettings) {
  const { Cluster } = await import('ioredis')
  const client = new Cluster(settings.ports.map(addressOf), {
    natMap: proxiesOf(settings),
    clusterRetryStrategy: () => RECONNECT_MS,
  })
  // As docs/drivers/redis.md recommends: ioredis handles no failure of ASKING.
  client.on('+node', (node) => {
    const asking = node.asking.bind(node)
    node.asking = () => {
      const sent = asking()
      sent.catch(() => {})
      return sent
    }
  })
  return client.on('error', () => {})
}

async function openNodeRedis(port: number, isNode: boolean) {
  const { createClient } = await import('redis')
  const client = createClient({
    socket: { ...addressOf(port), reconnectStrategy: RECONNECT_MS },
    ...(isNode && { disableOfflineQueue: true }),
  })
  return connecting(client)
}

/**
 * Without the proxies: with `nodeAddressMap`, redis 6 takes every answer of a Sentinel for a new master, and opens its
 * connections again and again.
 */
async function openNodeSentinel({ sentinel }: StoreSettings) {
  const { createSentinel } = await import('redis')
  const client = createSentinel({
    name: sentinel?.masterName ?? '',
    sentinelRootNodes: (sentinel?.ports ?? []).map(addressOf),
    scanInterval: 500,
  })
  return connecting(client)
}

async function openNodeCluster(settings: StoreSettings) {
  const { createCluster } = await import('redis')
  const client = createCluster({
    rootNodes: settings.ports.map((port) => ({ socket: addressOf(port) })),
    nodeAddressMap: proxiesOf(settings),
    defaults: { socket: { reconnectStrategy: RECONNECT_MS } },
  })
  client.on('error', () => {})
  // It asks each node once. If none of them answers, as under a fault, it stays closed.
  const connect = (): void => {
    client.connect().catch(() => setTimeout(connect, RECONNECT_MS).unref())
  }
  connect()
  return client
}

/** The client goes on trying in the background: the servers may be under a fault already. */
function connecting<Client extends { connect(): Promise<unknown>; on(event: 'error', listener: () => void): unknown }>(
  client: Client,
): Client {
  client.on('error', () => {})
  client.connect().catch(() => {})
  return client
}

async function openPostgres(settings: StoreSettings): Promise<Driver> {
  const url = urlOf({ ...settings, driver: 'postgres' })
  return postgresOn(settings, settings.through === 'pg' ? await openPool(url) : await openSql(url))
}

type PostgresClient = Parameters<typeof import('holdfast/drivers/postgres').postgresDriver>[0]['client']

/** A driver on a client of the application. */
export async function postgresOn(settings: StoreSettings, client: PostgresClient): Promise<Driver> {
  if (settings.driver === 'advisory') {
    const file = 'drivers/postgres-advisory.js'
    const drivers = await load<typeof import('holdfast/drivers/postgres-advisory')>(settings, file)
    return drivers.postgresAdvisoryDriver({ client })
  }
  const { postgresDriver } = await load<typeof import('holdfast/drivers/postgres')>(settings, 'drivers/postgres.js')
  return postgresDriver({ client })
}

async function openPool(url: string) {
  const { default: pg } = await import('pg')
  return new pg.Pool({ connectionString: url, max: 3 }).on('error', () => {})
}

async function openSql(url: string) {
  const { default: postgres } = await import('postgres')
  // A connection that ends while postgres reads the types of arrays is an unhandled rejection.
  return postgres(url, { max: 3, fetch_types: false, backoff: () => RECONNECT_MS / 1_000 })
}

const addressOf = (port: number) => ({ host: '127.0.0.1', port })

/** Where this client finds each server that a Cluster or Sentinel names: behind its own proxy. */
const proxiesOf = ({ announcedPorts = [], ports }: Pick<StoreSettings, 'announcedPorts' | 'ports'>) =>
  Object.fromEntries(announcedPorts.map((port, at) => [`127.0.0.1:${port}`, addressOf(ports[at] ?? port)]))

/** Imports a file of the package under test. */
export async function load<Module>({ dist }: Pick<StoreSettings, 'dist'>, file: string): Promise<Module> {
  return (await import(pathToFileURL(`${dist}/${file}`).href)) as Module
}
