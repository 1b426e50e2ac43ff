import { InvalidArgumentError } from '../../core/errors.ts'
import type { RedisConnection, RedisNode, Subscriber, SubscriberEvents } from './connection.ts'
import { slotCounter } from './keys.ts'
import { MasterWatch } from './master-watch.ts'

/** `Redis` of ioredis or iovalkey, as far as it is used here. */
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

/** `Cluster` of ioredis or iovalkey. */
export interface IoredisCluster {
  readonly isCluster: boolean
  readonly options: { readonly keyPrefix?: string | undefined }
  readonly slots: readonly (readonly string[])[]
  call(command: string, ...args: string[]): Promise<unknown>
  nodes(role: 'master'): IoredisClient[]
  on(event: '-node', listener: () => void): unknown
  // biome-ignore lint/suspicious/noExplicitAny: as above
  duplicate(...override: any[]): unknown
}

/** What a duplicate is used for. */
interface Duplicate extends IoredisSockets {
  subscribe(channel: string): Promise<unknown>
  ssubscribe(channel: string): Promise<unknown>
  connect(): Promise<unknown>
  disconnect(): void
  on(event: string, listener: (...args: never[]) => void): unknown
}

/**
 * The connection of a client that is ours, and those that come after it, do not keep the process alive. Nor does the
 * wait before the next one.
 */
export function unrefIoredis(client: IoredisSockets): void {
  client.on('connect', () => client.stream?.unref?.())
  client.on('reconnecting', () => client.reconnectTimeout?.unref?.())
}

/** A `Redis` of ioredis, or a `Cluster`, which has no socket of its own. Neither has a method for this. */
export interface IoredisSockets {
  readonly stream?: { unref?(): void }
  readonly reconnectTimeout?: { unref?(): void } | null
  on(event: string, listener: () => void): unknown
}

export function ioredisConnection(client: IoredisClient | IoredisCluster): RedisConnection {
  const { keyPrefix } = client.options
  if (keyPrefix) {
    const rule =
      'a client without keyPrefix; give the driver a `prefix` instead, which other clients of the same lock can be told'
    throw new InvalidArgumentError('client.options.keyPrefix', keyPrefix, rule)
  }
  const command = (_key: string, args: readonly string[]) => client.call(...(args as CommandArgs))
  let ended = 0
  const watchResends = () => {
    const before = ended
    return () => ended !== before
  }
  const count = (): void => {
    ended += 1
  }
  if (!isCluster(client)) {
    const node = nodeOf(client)
    // `autoResendUnfulfilledCommands`, which is on by default.
    client.on('close', count)
    return {
      cluster: false,
      place: placeOf(client),
      failureBehind: watchFailures(client),
      command,
      watchResends,
      together: (commands) => pipelined(client, commands),
      master: new MasterWatch(() => reconnect(client), { mayBePromoted: Boolean(client.options.sentinels) }),
      nodes: async () => [node],
      nodeOfSlot: async () => node,
    }
  }
  const nodes = async () => client.nodes('master').map(nodeOf)
  // A node whose connection has ended is removed, and what it has not answered is sent to the one that comes after it.
  client.on('-node', count)
  return {
    cluster: true,
    // Read when an error is made: the client learns its nodes from the servers.
    get place() {
      return `redis+cluster://${client.nodes('master').map(addressOf).join(',')}`
    },
    command,
    watchResends,
    nodes,
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

/** When a connection ends, ioredis sends a pipeline again as a whole or, if part of it was answered, fails the rest. */
async function pipelined(client: IoredisClient, commands: readonly (readonly string[])[]): Promise<unknown[]> {
  const results = await client.pipeline(commands.map((command) => ['call', ...command])).exec()
  return (results ?? []).map(([error, reply]) => {
    if (error !== null) throw error
    return reply
  })
}

function reconnect(client: IoredisClient): void {
  // A client that does not connect again by itself would be closed for good.
  const connectsAgain = typeof client.options.retryStrategy?.(1) === 'number'
  if (connectsAgain && client.status === 'ready') client.disconnect(true)
}

/**
 * After some attempts to connect, ioredis fails its commands with the number of attempts. Why they failed, it tells only
 * those who listen. A client without a listener of its owner's gets none from here: it would no longer print the errors
 * that nobody hears.
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
  const isUnsent = (error: unknown): boolean => error instanceof Error && UNSENT.test(error.message)
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

/** Every command has a name. */
type CommandArgs = [string, ...string[]]

const isCluster = (client: IoredisClient | IoredisCluster): client is IoredisCluster => client.isCluster

function nodeOf(client: IoredisClient): RedisNode {
  const { host = '127.0.0.1', port = 6379 } = client.options
  return {
    id: `${host}:${port}`,
    command: (args) => client.call(...(args as CommandArgs)),
    subscriber: (events) => openSubscriber(client, events),
  }
}

async function openSubscriber(client: IoredisClient, events: SubscriberEvents): Promise<Subscriber> {
  const duplicate = client.duplicate({
    lazyConnect: true,
    // Whoever listens is told that the connection is gone, and listens again: the client must not do it behind our
    // back.
    retryStrategy: () => null,
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
    // Versions before 6, and iovalkey, take the server's word that a slot has moved for an answer to no command.
    if (error.message.startsWith('Command queue state error')) moved()
  })
  const gone = (): void => closed(lastError ?? new Error('the subscription’s connection was closed'))
  duplicate.on('close', gone)
  duplicate.on('end', gone)
  duplicate.on('message', (channel: string, text: string) => events.message(channel, text))
  duplicate.on('smessage', (channel: string, text: string) => events.message(channel, text))
  duplicate.on('moved', moved)
  await duplicate.connect()
  return {
    async subscribe(channel, sharded) {
      await (sharded ? duplicate.ssubscribe(channel) : duplicate.subscribe(channel))
    },
    end,
  }
}
