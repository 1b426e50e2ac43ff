import {
  connected,
  MasterWatch,
  type RedisConnection,
  type RedisNode,
  type Subscriber,
  type SubscriberEvents,
} from './connection.ts'
import { routingKey, slotCounter, slotOf } from './keys.ts'
import { bounded, ownClients } from './unanswered.ts'

/** The members of a client from `createClient` (node-redis) that the driver uses. */
export interface NodeRedisClient {
  readonly isOpen: boolean
  listenerCount(event: string): number
  sendCommand(args: string[]): Promise<unknown>
  multi(): unknown
  // biome-ignore lint/suspicious/noExplicitAny: its own type is generic in its modules, and differs between versions
  duplicate(...override: any[]): unknown
}

/** The members of a client from `createCluster` (node-redis) that the driver uses. */
export interface NodeRedisCluster {
  readonly isOpen: boolean
  readonly masters: readonly NodeRedisMaster[]
  readonly slots: readonly { readonly master: NodeRedisMaster }[]
  sendCommand(firstKey: string | undefined, isReadonly: boolean | undefined, args: string[]): Promise<unknown>
  // biome-ignore lint/suspicious/noExplicitAny: as above
  nodeClient(node: any): unknown
  // biome-ignore lint/suspicious/noExplicitAny: as above
  duplicate(...override: any[]): unknown
}

/** The members of a client from `createSentinel` (node-redis) that the driver uses. */
export interface NodeRedisSentinel {
  readonly isOpen: boolean
  sendCommand(isReadonly: boolean | undefined, args: string[]): Promise<unknown>
  multi(): unknown
  getMasterNode(): unknown
  // biome-ignore lint/suspicious/noExplicitAny: as above
  subscribe(channel: string, listener: (text: any, channel: any) => void): Promise<unknown>
  // biome-ignore lint/suspicious/noExplicitAny: as above
  unsubscribe(channel: string, listener: (text: any, channel: any) => void): Promise<unknown>
  // biome-ignore lint/suspicious/noExplicitAny: as above
  on(event: any, listener: (...args: any[]) => void): unknown
  // biome-ignore lint/suspicious/noExplicitAny: as above
  off(event: any, listener: (...args: any[]) => void): unknown
}

interface NodeRedisMaster {
  readonly address: string
}

/** The members of a client that the driver opened itself, or of a node of it. */
interface OwnClient {
  readonly isReady: boolean
  destroy(): void
  connect(): Promise<unknown>
}

interface Duplicate {
  unref?(): void
  subscribe(channel: string, listener: (text: string, channel: string) => void): Promise<void>
  sSubscribe(channel: string, listener: (text: string, channel: string) => void): Promise<void>
  connect(): Promise<unknown>
  destroy(): void
  on(event: string, listener: (...args: never[]) => void): unknown
}

export function nodeRedisConnection(client: NodeRedisClient | NodeRedisCluster | NodeRedisSentinel): RedisConnection {
  if (isSentinel(client)) return sentinelConnection(client)
  const isOwn = ownClients.has(client)
  if (!isCluster(client)) {
    const node = nodeOf('0', async () => client)
    const place = placeOf(client)
    return {
      cluster: false,
      place,
      failureBehind,
      command: bounded((_key, args) => client.sendCommand([...args]), {
        place: () => place,
        replace: isOwn ? () => reopen(client) : undefined,
      }),
      together: (commands) => pipelined(client, commands),
      master: new MasterWatch(() => reconnect(client)),
      nodes: async () => [node],
      nodeOfSlot: async () => node,
    }
  }
  const nodeOfMaster = (master: NodeRedisMaster): RedisNode =>
    nodeOf(master.address, async () => (await client.nodeClient(master)) as NodeRedisClient)
  const serverOf = (key: string): string | undefined => client.slots[slotOf(key)]?.master.address
  const send = (key: string, args: readonly string[]) => client.sendCommand(routingKey(key), false, [...args])
  const command = bounded(send, {
    place: (key) => serverOf(key) ?? 'an unknown node',
    serverOf,
    replace: isOwn ? (id) => reopen(clientAt(client, id)) : undefined,
  })
  return {
    cluster: true,
    failureBehind,
    get place() {
      return `redis+cluster://${client.masters.map(({ address }) => address).join(',')}`
    },
    command,
    nodes: async () => client.masters.map(nodeOfMaster),
    masterOf: (slot) => client.slots[slot]?.master.address,
    async nodeOfSlot(slot) {
      await command(slotCounter(slot), ['GET', slotCounter(slot)])
      const master = client.slots[slot]?.master ?? client.masters[0]
      if (master === undefined) throw new Error('the Cluster client knows of no master')
      return nodeOfMaster(master)
    },
  }
}

/** The error of a command that has waited too long for a connection says nothing. */
const failureBehind = (error: unknown): unknown =>
  error instanceof Error && error.message === '' && !('errors' in error) ? UNSENT : error

const UNSENT = new Error('Connection timeout')

/** The result of `multi`, used to send commands over one connection, without a transaction. */
interface Pipeline {
  addCommand(...args: unknown[]): unknown
  execAsPipeline(): Promise<unknown[]>
}

/** `options`: with Sentinel, whether a replica may run the commands. */
function pipelined(
  client: { multi(): unknown },
  commands: readonly (readonly string[])[],
  ...options: boolean[]
): Promise<readonly unknown[]> {
  const pipeline = client.multi() as Pipeline
  for (const command of commands) pipeline.addCommand(...options, [...command])
  return pipeline.execAsPipeline()
}

function reconnect(client: NodeRedisClient): void {
  const { reconnectStrategy = 0 } = socketOf(client)
  const cause = new Error('the server is no longer the master')
  const retry = typeof reconnectStrategy === 'function' ? reconnectStrategy(0, cause) : reconnectStrategy
  // A client that does not reconnect by itself would stay closed. Without an `error` listener, the error would end the
  // process.
  if (typeof retry !== 'number' || client.listenerCount('error') === 0) return
  // node-redis has no method to reconnect. After QUIT the server closes the connection, and the client opens another.
  client.sendCommand(['QUIT']).catch(() => {}) // The connection may be closed already, which is what was wanted.
}

/** Undefined until the first command to the node. */
function clientAt({ masters }: NodeRedisCluster, id: string): unknown {
  const node: (NodeRedisMaster & { readonly client?: unknown }) | undefined = masters.find(
    ({ address }) => address === id,
  )
  return node?.client
}

/**
 * Its commands in flight fail. None is sent again. A client that is connecting goes on: with `destroy` and `connect` in
 * between, node-redis would do so twice from then on, and leave connections behind.
 */
function reopen(own: unknown): void {
  const client = own as OwnClient | undefined
  if (client?.isReady !== true) return
  client.destroy()
  client.connect().catch(() => {}) // The `error` event reports it, too.
}

function placeOf(client: NodeRedisClient): string {
  const { host = 'localhost', port = 6379, path, tls } = socketOf(client)
  return path ?? `redis${tls ? 's' : ''}://${host.includes(':') ? `[${host}]` : host}:${port}`
}

interface SocketOptions {
  readonly host?: string
  readonly port?: number
  readonly path?: string
  readonly tls?: unknown
  readonly reconnectStrategy?: false | number | ((retries: number, cause: Error) => unknown)
}

const socketOf = (client: NodeRedisClient): SocketOptions =>
  (client as { options?: { socket?: SocketOptions } }).options?.socket ?? {}

const isCluster = (client: NodeRedisClient | NodeRedisCluster): client is NodeRedisCluster => 'masters' in client

const isSentinel = (client: NodeRedisClient | NodeRedisCluster | NodeRedisSentinel): client is NodeRedisSentinel =>
  'getMasterNode' in client

/**
 * The client follows the master by itself and renews its own subscriptions. With a new master, messages may have been
 * missed.
 */
function sentinelConnection(client: NodeRedisSentinel): RedisConnection {
  const send = (args: readonly string[]): Promise<unknown> => client.sendCommand(false, [...args])
  // Commands that the master has not answered are sent again, and no event says so. So the driver asks the server for
  // the id of the connection: once, and then each time that it matters. In a pool the ids differ from call to call.
  const connectionId = (): Promise<unknown> => send(['CLIENT', 'ID']).catch(() => Symbol('not known'))
  let lastId: Promise<unknown> | undefined
  const node: RedisNode = {
    id: 'master',
    command: send,
    async subscriber({ message, closed }) {
      const listener = (text: string, channel: string): void => message(channel, text)
      const channels = new Set<string>()
      const moved = ({ type }: { type?: string } = {}): void => {
        if (type !== 'MASTER_CHANGE') return
        end()
        closed(new Error('the Sentinels have named another master'))
      }
      const end = (): void => {
        client.off('topology-change', moved)
        // The connection may be closed already.
        for (const channel of channels) client.unsubscribe(channel, listener).catch(() => {})
        channels.clear()
      }
      client.on('topology-change', moved)
      return {
        async subscribe(channel) {
          channels.add(channel)
          await client.subscribe(channel, listener)
        },
        end,
      }
    },
  }
  return {
    cluster: false,
    place: 'the master that Sentinel names',
    failureBehind,
    command: bounded((_key, args) => send(args), { place: () => 'the master that Sentinel names' }),
    session(isFresh) {
      if (isFresh) lastId = undefined
      lastId ??= connectionId()
      return lastId
    },
    // No replica may run them.
    together: (commands) => pipelined(client, commands, false),
    nodes: async () => [node],
    nodeOfSlot: async () => node,
  }
}

function nodeOf(id: string, client: () => Promise<NodeRedisClient>): RedisNode {
  return {
    id,
    command: async (args) => (await client()).sendCommand([...args]),
    subscriber: async (events) => openSubscriber(await client(), events),
  }
}

async function openSubscriber(client: NodeRedisClient, events: SubscriberEvents): Promise<Subscriber> {
  // When the connection is lost, the subscription ends and core subscribes again. A silent reconnect would hide that
  // messages were missed.
  const duplicate = client.duplicate({ socket: { ...socketOf(client), reconnectStrategy: false } }) as Duplicate
  duplicate.unref?.()
  let ended = false
  const end = (): void => {
    ended = true
    try {
      duplicate.destroy()
    } catch {
      // It throws if the connection is already closed, which is what was wanted.
    }
  }
  const closed = (cause: Error): void => {
    if (ended) return
    end()
    events.closed(cause)
  }
  duplicate.on('error', (error: Error) => closed(error))
  duplicate.on('end', () => closed(new Error('the subscription’s connection was closed')))
  duplicate.on('sharded-channel-moved', () => closed(new Error('the slot moved to another node')))
  const listener = (text: string, channel: string): void => events.message(channel, text)
  await connected(duplicate.connect(), end)
  return {
    subscribe: (channel, sharded) =>
      sharded ? duplicate.sSubscribe(channel, listener) : duplicate.subscribe(channel, listener),
    end,
  }
}
