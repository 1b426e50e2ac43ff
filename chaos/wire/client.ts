import type { DistributedLock, Driver, InstanceOptions, LeaderElection, ReadWriteLock, Semaphore } from 'holdfast'
import type { Library } from './library.ts'
import { CALL_MS, seconds, TTL_MS, WAITER_MS } from './settings.ts'

export type StoreName = 'redis' | 'redlock' | 'cluster' | 'postgres' | 'advisory'

/** One client of a scene, with its own driver and its own connections. */
export interface Client {
  readonly id: string
  readonly lock: DistributedLock
  readonly driver: Driver
  /** With the default times, for what a busy machine must not fail. */
  readonly patient: DistributedLock
  /** Resolves when the connections of its package are open. Those of a pool open with its first query. */
  connected(): Promise<unknown>
  readers(): ReadWriteLock
  semaphore(limit: number): Semaphore
  election(name: string): LeaderElection
  /** Waits for nothing: what it leaves behind ends with the proxies. */
  abandon(): void
}

export interface ClientRequest {
  readonly id: string
  readonly store: StoreName
  readonly ports: readonly number[]
  /** The ports that a Cluster names, in the order of `ports`, which lead this client to them. */
  readonly announced?: readonly number[]
  /** Of the two packages for a kind of server, the first (ioredis, pg) or the second (redis, postgres). */
  readonly package: 0 | 1
  /** With the default times instead of the short ones. */
  readonly isPatient?: true
}

export async function openClient(library: Library, request: ClientRequest): Promise<Client> {
  const { driver, connected, end } = await openDriver(library, request)
  const options: InstanceOptions = {
    driver,
    holderId: `client-${request.id}`,
    ...(!request.isPatient && { callTimeoutSeconds: seconds(CALL_MS), waiterTtlSeconds: seconds(WAITER_MS) }),
  }
  const lock = new library.DistributedLock(options)
  const patient = new library.DistributedLock({ driver })
  const closing: { close(): Promise<void> }[] = [lock, patient]
  const closed = <T extends { close(): Promise<void> }>(instance: T): T => {
    closing.push(instance)
    return instance
  }
  return {
    id: request.id,
    lock,
    driver,
    patient,
    connected,
    readers: () => closed(new library.ReadWriteLock(options)),
    semaphore: (limit) => closed(new library.Semaphore({ ...options, limit })),
    election: (name) => closed(new library.LeaderElection({ ...options, name, timeoutSeconds: seconds(TTL_MS) })),
    abandon() {
      const all = Promise.allSettled(closing.map((each) => each.close()))
      void all.then(() => driver.close().catch(() => {})).then(end)
    },
  }
}

interface Opened {
  readonly driver: Driver
  connected(): Promise<unknown>
  end(): void
}

async function openDriver(library: Library, request: ClientRequest): Promise<Opened> {
  const { store, ports } = request
  if (store === 'postgres' || store === 'advisory') {
    const { client, end } = request.package === 0 ? await openPg(ports[0]) : await openPostgresJs(ports[0])
    const driver =
      store === 'postgres' ? library.postgresDriver({ client }) : library.postgresAdvisoryDriver({ client })
    return { driver, connected: async () => undefined, end }
  }
  const isNode = store === 'redlock'
  const clients =
    store === 'cluster'
      ? [await (request.package === 0 ? openIoredisCluster(request) : openNodeCluster(request))]
      : await Promise.all(
          ports.map((port) => (request.package === 0 ? openIoredis(port, isNode) : openNodeRedis(port, isNode))),
        )
  const connected = (): Promise<unknown> => Promise.all(clients.map((each) => each.connected))
  const end = (): void => {
    for (const each of clients) each.end()
  }
  const nodes = clients.map(({ client }) =>
    library.redisDriver({
      client,
      onWarning() {},
      ...(!request.isPatient && { callTimeoutSeconds: seconds(CALL_MS) }),
    }),
  )
  if (!isNode) return { driver: nodes[0] as Driver, connected, end }
  const settings = {
    nodeTimeoutSeconds: request.isPatient ? 1 : seconds(CALL_MS / 2),
    longestTtlSeconds: LONGEST_TTL_SECONDS,
  }
  return { driver: library.redlockDriver({ nodes, ...settings }), connected, end }
}

/** Of all clients of Redlock. A fresh node does not vote for this long. */
export const LONGEST_TTL_SECONDS = 8
const RECONNECT_MS = 40

export async function openIoredis(port: number, isNode: boolean) {
  const { Redis } = await import('ioredis')
  const retries = isNode ? { maxRetriesPerRequest: 0 } : {}
  const client = new Redis({ port, host: '127.0.0.1', retryStrategy: () => RECONNECT_MS, ...retries })
  client.on('error', () => {})
  const connected = new Promise((resolve) => client.once('ready', resolve))
  return { client, connected, end: () => client.disconnect() }
}

let model: ReturnType<typeof import('redis').createClient> | undefined

export async function openNodeRedis(port: number, isNode: boolean) {
  const { createClient } = await import('redis')
  // Every call of createClient with other options makes a class with all commands, which costs more than a scene.
  model ??= createClient()
  const client = model.duplicate({
    socket: { port, host: '127.0.0.1', reconnectStrategy: RECONNECT_MS },
    disableOfflineQueue: isNode,
  })
  client.on('error', () => {})
  const connected = new Promise((resolve) => client.once('ready', resolve))
  // It goes on trying in the background, if the first messages are hit by a fault.
  client.connect().catch(() => {})
  return { client, connected, end: () => client.destroy() }
}

async function openIoredisCluster({ ports, announced = [] }: ClientRequest) {
  const { Cluster } = await import('ioredis')
  const client = new Cluster(ports.map(addressOf), {
    natMap: proxiesOf(ports, announced),
    clusterRetryStrategy: () => RECONNECT_MS,
  })
  client.on('error', () => {})
  const connected = new Promise((resolve) => client.once('ready', resolve))
  return { client, connected, end: () => client.disconnect() }
}

async function openNodeCluster({ ports, announced = [] }: ClientRequest) {
  const { createCluster } = await import('redis')
  const client = createCluster({
    rootNodes: ports.map((port) => ({ socket: addressOf(port) })),
    nodeAddressMap: proxiesOf(ports, announced),
    defaults: { socket: { reconnectStrategy: RECONNECT_MS } },
  })
  client.on('error', () => {})
  return { client, connected: client.connect(), end: () => client.destroy() }
}

const addressOf = (port: number) => ({ host: '127.0.0.1', port })

const proxiesOf = (ports: readonly number[], announced: readonly number[]) =>
  Object.fromEntries(announced.map((port, at) => [`127.0.0.1:${port}`, addressOf(ports[at] ?? port)]))

async function openPg(port: number | undefined) {
  const { default: pg } = await import('pg')
  const client = new pg.Pool({ host: '127.0.0.1', port, user: 'postgres', database: 'postgres', max: 4 })
  client.on('error', () => {})
  return { client, end: () => void client.end().catch(() => {}) }
}

async function openPostgresJs(port: number | undefined) {
  const { default: postgres } = await import('postgres')
  const pause = { connect_timeout: 2, backoff: () => seconds(RECONNECT_MS) }
  const place = { host: '127.0.0.1', ...(port !== undefined && { port }), username: 'postgres', database: 'postgres' }
  // Otherwise it reads the types of arrays on each new connection, and leaves a rejection of that unhandled.
  const client = postgres({ ...place, ...pause, fetch_types: false, max: 4, onnotice() {} })
  return { client, end: () => void client.end({ timeout: 0 }).catch(() => {}) }
}
