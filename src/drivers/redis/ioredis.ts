import { InvalidArgumentError } from '../../core/errors.ts'
import { messageOf } from '../../core/foreign-errors.ts'
import {
  connected,
  MasterWatch,
  type RedisConnection,
  type RedisNode,
  type Subscriber,
  type SubscriberEvents,
} from './connection.ts'
import { slotCounter, slotOf } from './keys.ts'
import { bounded, ownClients } from './unanswered.ts'

/** The members of `Redis` (ioredis or iovalkey) that the driver uses. */
export interface IoredisClient {
  readonly isCluster: boolean
  readonly options: {
    readonly host?: string | undefined
    readonly port?: number | undefined
    readonly path?: string | undefined
    readonly tls?: unknown
    readonly sentinels?: unknown
    readonly keyPrefix?: string | undefined
    readonly retryStrategy?: ((times: number) => unknown) | null | undefined
  }
  readonly status: string
  disconnect(reconnect?: boolean): void
  call(command: string, ...args: string[]): Promise<unknown>
  pipeline(commands: unknown[][]): { exec(): Promise<[error: Error | null, reply: unknown][] | null> }
  on(event: 'close' | 'ready', listener: () => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
  listenerCount(event: string): number
  // biome-ignore lint/suspicious/noExplicitAny: its own type is generic in its options, and differs between versions
  duplicate(...override: any[]): unknown
}

/** The members of `Cluster` (ioredis or iovalkey) that the driver uses. */
export interface IoredisCluster {
  readonly isCluster: boolean
  readonly options: { readonly keyPrefix?: string | undefined }
  readonly status: string
  readonly slots: readonly (readonly string[])[]
  refreshSlotsCache(done: () => void): void
  call(command: string, ...args: string[]): Promise<unknown>
  nodes(role: 'master'): IoredisClient[]
  on(event: '-node', listener: () => void): unknown
  // biome-ignore lint/suspicious/noExplicitAny: as above
  duplicate(...override: any[]): unknown
}

/** The members of a duplicated client that the driver uses. */
interface Duplicate extends IoredisSockets {
  subscribe(channel: string): Promise<unknown>
  ssubscribe(channel: string): Promise<unknown>
  connect(): Promise<unknown>
  disconnect(): void
  on(event: string, listener: (...args: never[]) => void): unknown
}

/**
 * For clients that the driver opened itself: neither a connection nor the pause before a reconnect keeps the process
 * alive.
 */
export function unrefIoredis(client: IoredisSockets): void {
  client.on('connect', () => client.stream?.unref?.())
  client.on('reconnecting', () => client.reconnectTimeout?.unref?.())
}

/**
 * For the nodes of a Cluster client that the driver opened itself. While a slot is moved, ioredis sends ASKING before a
 * command that is redirected, and handles no failure of it: a connection that ends then would end the process. The
 * command behind it fails by itself, or is sent again.
 */
export function handleAsking(node: { asking?(): Promise<unknown> }): void {
  const asking = node.asking?.bind(node)
  if (asking === undefined) return
  node.asking = () => {
    const sent = asking()
    sent.catch(() => {})
    return sent
  }
}

/** The sockets of a `Redis`, or of a `Cluster`, which has none itself. ioredis has no method to unref them. */
export interface IoredisSockets {
  readonly stream?: { unref?(): void }
  readonly reconnectTimeout?: { unref?(): void } | null
  on(event: string, listener: () => void): unknown
}

export function ioredisConnection(client: IoredisClient | IoredisCluster, argument: string): RedisConnection {
  const { keyPrefix } = client.options
  if (keyPrefix) {
    const rule = 'a client without keyPrefix. Give the driver a `prefix` instead: all clients of a lock need the same'
    throw new InvalidArgumentError(`${argument}.options.keyPrefix`, keyPrefix, rule)
  }
  const isOwn = ownClients.has(client)
  const send = (_key: string, args: readonly string[]) => client.call(...(args as CommandArgs))
  let ended = 0
  const session = (): number => ended
  const count = (): void => {
    ended += 1
  }
  if (!isCluster(client)) {
    const node = nodeOf(client)
    // By default (`autoResendUnfulfilledCommands`) ioredis then sends unanswered commands again.
    client.on('close', count)
    const place = placeOf(client)
    const replace = isOwn ? () => client.disconnect(true) : undefined
    return {
      cluster: false,
      place,
      failureBehind: watchFailures(client),
      command: bounded(send, { place: () => place, replace }),
      session,
      together: (commands) => pipelined(client, commands),
      master: new MasterWatch(() => reconnect(client), { mayBePromoted: Boolean(client.options.sentinels) }),
      nodes: async () => [node],
      nodeOfSlot: async () => node,
    }
  }
  const findMasters = () => new Promise<void>((done) => client.refreshSlotsCache(() => done()))
  const nodes = async () => {
    // Its nodes are unknown before it has connected, and while it reconnects.
    if (client.status !== 'ready') await client.call('PING')
    if (!knowsMasters(client)) await findMasters()
    if (!knowsMasters(client)) throw new Error('the Cluster client does not know all masters')
    return client.nodes('master').map(nodeOf)
  }
  // A node whose connection has ended is removed, and its unanswered commands are sent to the node that replaces it.
  client.on('-node', count)
  const serverOf = (key: string): string | undefined => client.slots[slotOf(key)]?.[0]
  // The Cluster client opens another connection when it has asked for the slots again.
  const disconnect = (id: string): void =>
    client
      .nodes('master')
      .find((node) => idOf(node) === id)
      ?.disconnect()
  return {
    cluster: true,
    // Evaluated for each error, because the client learns its nodes from the servers.
    get place() {
      return `redis+cluster://${client.nodes('master').map(addressOf).join(',')}`
    },
    command: bounded(send, {
      place: (key) => serverOf(key) ?? 'an unknown node',
      serverOf,
      replace: isOwn ? disconnect : undefined,
    }),
    session,
    findMasters,
    nodes,
    masterOf: (slot) => client.slots[slot]?.[0],
    async nodeOfSlot(slot) {
      await client.call('GET', slotCounter(slot))
      const all = await nodes()
      const address = client.slots[slot]?.[0]
      const node = all.find(({ id }) => id === address) ?? all[0]
      if (node === undefined) throw new Error('the Cluster client knows of no master')
      return node
    },
  }
}

/**
 * ioredis forgets a node whose connection has ended, until an error of a command makes it ask for the slots again. If
 * it knows only replicas, it sends all commands to them. To a script, the replica of the right slot does not answer
 * MOVED: it runs the script until its first write.
 */
function knowsMasters(client: IoredisCluster): boolean {
  const known = new Set(client.nodes('master').map(idOf))
  return known.size > 0 && client.slots.every(([master]) => master === undefined || known.has(master))
}

/** If the connection ends, ioredis sends the entire pipeline again, or fails the rest if part of it was answered. */
async function pipelined(client: IoredisClient, commands: readonly (readonly string[])[]): Promise<unknown[]> {
  const results = await client.pipeline(commands.map((command) => ['call', ...command])).exec()
  return (results ?? []).map(([error, reply]) => {
    if (error !== null) throw error
    return reply
  })
}

function reconnect(client: IoredisClient): void {
  // A client that does not reconnect by itself would stay closed.
  const connectsAgain = typeof client.options.retryStrategy?.(1) === 'number'
  if (connectsAgain && client.status === 'ready') client.disconnect(true)
}

/**
 * After some attempts to connect, ioredis fails its commands with the number of attempts. It reports the reason only by
 * `error` events. If the client has no listener for them, the driver adds none: ioredis would stop printing the errors.
 */
function watchFailures(client: IoredisClient): (error: unknown) => unknown {
  let last: Error | undefined
  if (client.listenerCount('error') > 0) {
    client.on('error', (error) => {
      last = error
    })
    client.on('ready', () => {
      last = undefined
    })
  }
  const isUnsent = (error: unknown): boolean => UNSENT.test(messageOf(error))
  return (error) => (isUnsent(error) ? (last ?? new Error('Connection is closed.')) : error)
}

const UNSENT = /max retries per request|^Connection is closed|^Stream isn't writeable/

function placeOf(client: IoredisClient): string {
  const { path, tls, sentinels } = client.options
  if (path) return path
  if (sentinels) return 'the master that Sentinel names'
  return `redis${tls ? 's' : ''}://${addressOf(client)}`
}

function addressOf({ options: { host = '127.0.0.1', port = 6379 } }: IoredisClient): string {
  return `${host.includes(':') ? `[${host}]` : host}:${port}`
}

type CommandArgs = [string, ...string[]]

const isCluster = (client: IoredisClient | IoredisCluster): client is IoredisCluster => client.isCluster

/** As `slots` of a Cluster names the node. */
const idOf = ({ options: { host = '127.0.0.1', port = 6379 } }: IoredisClient): string => `${host}:${port}`

function nodeOf(client: IoredisClient): RedisNode {
  return {
    id: idOf(client),
    command: (args) => client.call(...(args as CommandArgs)),
    subscriber: (events) => openSubscriber(client, events),
  }
}

async function openSubscriber(client: IoredisClient, events: SubscriberEvents): Promise<Subscriber> {
  const duplicate = client.duplicate({
    lazyConnect: true,
    // When the connection is lost, the subscription ends and core subscribes again. A silent reconnect would hide that
    // messages were missed.
    retryStrategy: () => null,
    // Otherwise, while no Sentinel answers, each attempt would leave behind a client that goes on asking.
    sentinelRetryStrategy: () => null,
    autoResubscribe: false,
    maxRetriesPerRequest: 0,
    enableReadyCheck: false,
  }) as Duplicate
  unrefIoredis(duplicate)
  let ended = false
  const end = (): void => {
    ended = true
    duplicate.disconnect()
  }
  const closed = (cause: Error): void => {
    if (ended) return
    end()
    events.closed(cause)
  }
  const moved = (): void => closed(new Error('the slot moved to another node'))
  let lastError: Error | undefined
  duplicate.on('error', (error: Error) => {
    lastError = error
    // ioredis before 6 and iovalkey mistake the server's message that a slot has moved for an unexpected answer.
    if (messageOf(error).startsWith('Command queue state error')) moved()
  })
  const gone = (): void => closed(lastError ?? new Error('the subscription’s connection was closed'))
  duplicate.on('close', gone)
  duplicate.on('end', gone)
  duplicate.on('message', (channel: string, text: string) => events.message(channel, text))
  duplicate.on('smessage', (channel: string, text: string) => events.message(channel, text))
  duplicate.on('moved', moved)
  await connected(duplicate.connect(), end)
  return {
    async subscribe(channel, sharded) {
      await (sharded ? duplicate.ssubscribe(channel) : duplicate.subscribe(channel))
    },
    end,
  }
}
