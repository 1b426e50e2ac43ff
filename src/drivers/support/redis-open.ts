import { InvalidArgumentError, StoreError, UnsupportedError } from '../../core/errors.ts'
import type { RedisClient } from './redis-connection.ts'
import type { IoredisClient, IoredisCluster } from './redis-ioredis.ts'
import type { NodeRedisClient, NodeRedisCluster } from './redis-node-redis.ts'

export interface OpenedClient {
  readonly client: RedisClient
  readonly prefix: string | undefined
  close(): Promise<void>
}

/** `fast`: a server that cannot be reached fails its commands at once, because others are asked, too. */
export interface OpenOptions {
  readonly fast?: boolean
}

/** Opens a client from a URL, with whichever library is there. */
export async function openClient(url: string, options: OpenOptions = {}): Promise<OpenedClient> {
  const { urls, cluster, prefix } = readUrl(url)
  const found = (await openIoredis(urls, cluster, options)) ?? (await openNodeRedis(urls, cluster, options))
  if (found === undefined) {
    throw new UnsupportedError('a redis: URL needs a client: npm install ioredis, or npm install redis')
  }
  return { ...found, prefix }
}

/** Several hosts, with commas between, are nodes of one Cluster to begin with. */
export function readUrl(url: string): { urls: string[]; cluster: boolean; prefix: string | undefined } {
  const parts = /^(rediss?)(\+cluster)?:\/\/([^/?]*)(\/[^?]*)?(\?.*)?$/.exec(url)
  if (parts === null)
    throw new InvalidArgumentError('url', url.replace(/\/\/[^@/]*@/, '//…@'), 'redis://host:port/database')
  const [, scheme = 'redis', plusCluster, authority = '', path = '', search = ''] = parts
  const query = new URLSearchParams(search)
  const prefix = query.get('prefix') ?? undefined
  query.delete('prefix')
  const rest = `${path}${query.size > 0 ? `?${query}` : ''}`
  const at = authority.lastIndexOf('@')
  const [login, hosts] = [authority.slice(0, at + 1), authority.slice(at + 1)]
  return {
    urls: hosts.split(',').map((host) => `${scheme}://${login}${host}${rest}`),
    cluster: plusCluster !== undefined,
    prefix,
  }
}

/** What is used of the module. */
interface IoredisModule {
  readonly Redis: new (url: string, options: object) => IoredisClient & Closable
  readonly Cluster: new (nodes: object[], options: object) => IoredisCluster & Closable
}

interface Closable {
  disconnect(): void
  on(event: string, listener: (...args: never[]) => void): unknown
}

async function openIoredis(
  urls: string[],
  cluster: boolean,
  { fast = false }: OpenOptions,
): Promise<Omit<OpenedClient, 'prefix'> | undefined> {
  const module = (await optional(() => import('ioredis'))) as IoredisModule | undefined
  if (module === undefined) return undefined
  const options = { maxRetriesPerRequest: fast ? 0 : 3, connectTimeout: 5_000 }
  const client = cluster
    ? new module.Cluster(urls.map(clusterNode), { redisOptions: { ...options, ...clusterLogin(urls[0] as string) } })
    : new module.Redis(urls[0] as string, options)
  // Every command says what is wrong; without this, a dead connection would end the process.
  client.on('error', () => {})
  return { client, close: async () => client.disconnect() }
}

function clusterNode(url: string): { host: string; port: number } {
  const { hostname, port } = new URL(url)
  return { host: hostname, port: Number(port || 6379) }
}

function clusterLogin(url: string): object {
  const { protocol, username, password } = new URL(url)
  return {
    ...(username && { username: decodeURIComponent(username) }),
    ...(password && { password: decodeURIComponent(password) }),
    ...(protocol === 'rediss:' && { tls: {} }),
  }
}

interface NodeRedisModule {
  createClient(options: object): NodeRedisClient & NodeRedisClosable
  createCluster(options: object): NodeRedisCluster & NodeRedisClosable
}

interface NodeRedisClosable {
  connect(): Promise<unknown>
  destroy(): void
  on(event: string, listener: (...args: never[]) => void): unknown
}

async function openNodeRedis(
  urls: string[],
  cluster: boolean,
  { fast = false }: OpenOptions,
): Promise<Omit<OpenedClient, 'prefix'> | undefined> {
  const module = (await optional(() => import('redis'))) as NodeRedisModule | undefined
  if (module === undefined) return undefined
  const client = cluster
    ? module.createCluster({ rootNodes: urls.map((url) => ({ url })), defaults: nodeRedisDefaults(urls[0] as string) })
    : module.createClient({ url: urls[0], disableOfflineQueue: fast })
  client.on('error', () => {})
  const connected = client.connect().catch((error: unknown) => {
    throw new StoreError(`redis cannot be reached: ${error instanceof Error ? error.message : error}`, { cause: error })
  })
  // It goes on trying in the background.
  if (fast) connected.catch(() => {})
  else await connected
  const close = async (): Promise<void> => {
    // Version 5 throws for a client that is closed.
    if (client.isOpen) client.destroy()
  }
  return { client, close }
}

/** For the nodes that the Cluster names, of which no URL says anything. */
export function nodeRedisDefaults(url: string): object {
  const { protocol, username, password } = new URL(url)
  return {
    ...(username && { username: decodeURIComponent(username) }),
    ...(password && { password: decodeURIComponent(password) }),
    ...(protocol === 'rediss:' && { socket: { tls: true } }),
  }
}

/** Undefined where it is not installed; anything else that goes wrong with it is not hidden. */
async function optional(load: () => Promise<unknown>): Promise<unknown> {
  try {
    return await load()
  } catch (error) {
    if ((error as { code?: string }).code === 'ERR_MODULE_NOT_FOUND') return undefined
    throw error
  }
}
