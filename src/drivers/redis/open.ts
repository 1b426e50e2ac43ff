import { connect as connectSocket, isIP } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { MissingClientError, StoreError } from '../../core/errors.ts'
import { connectionTrouble, messageOf, safeCause } from '../../core/foreign-errors.ts'
import { clearTimeout, setTimeout } from '../../core/time/native-time.ts'
import { importIfThere } from '../shared/optional-client.ts'
import type { HostPort } from '../shared/url.ts'
import type { RedisClient } from './client.ts'
import { storeErrorFrom } from './errors.ts'
import { type IoredisClient, type IoredisCluster, type IoredisSockets, unrefIoredis } from './ioredis.ts'
import type { NodeRedisClient, NodeRedisCluster } from './node-redis.ts'
import type { RedisTarget } from './url.ts'

export interface OpenedClient {
  readonly client: RedisClient
  close(): Promise<void>
}

/** `fast`: a server that cannot be reached fails its commands at once, because others are asked, too. */
export interface OpenOptions {
  readonly fast?: boolean
}

/**
 * Opens a client with whichever library is installed. Only that of a Cluster waits until it is connected. Its
 * connections do not keep the process alive: whoever waits for an answer does.
 */
export async function openClient(target: RedisTarget, options: OpenOptions = {}): Promise<OpenedClient> {
  const opened = (await openIoredis(target, options)) ?? (await openNodeRedis(target, options))
  if (opened !== undefined) return opened
  throw new MissingClientError('the redis driver', ['ioredis', 'redis'])
}

/** What is used of the module. */
interface IoredisModule {
  readonly Redis: new (options: object) => IoredisClient & IoredisEvents
  readonly Cluster: new (nodes: readonly object[], options: object) => IoredisCluster & IoredisEvents
}

interface IoredisEvents extends IoredisSockets {
  disconnect(reconnect?: boolean): void
  on(event: string, listener: (about: never) => void): unknown
}

export async function openIoredis(
  { hosts, cluster, tls, username, password, database }: RedisTarget,
  { fast = false }: OpenOptions,
): Promise<OpenedClient | undefined> {
  const module = (await importIfThere('ioredis')) as IoredisModule | undefined
  if (module === undefined) return undefined
  const options = {
    maxRetriesPerRequest: fast ? 0 : 3,
    // Commands that wait fail with every fourth attempt, and say why if that comes before their own time is up.
    retryStrategy: (times: number) => Math.min(times * FIRST_RETRY_MS, MAX_RETRY_MS),
    connectTimeout: CONNECT_MS,
    disconnectTimeout: FAREWELL_MS,
    ...(username !== undefined && { username }),
    ...(password !== undefined && { password }),
    ...(tls && { tls: {} }),
  }
  const client = cluster
    ? new module.Cluster(hosts, { redisOptions: options })
    : new module.Redis({ ...options, ...hosts[0], db: database })
  unrefIoredis(client)
  if (cluster) client.on('+node', unrefIoredis)
  if (!cluster && tls) failWithoutTls(client as IoredisClient & IoredisEvents, hosts[0] as HostPort)
  if (database !== 0) useOnlyDatabase(client as IoredisClient & IoredisEvents, database)
  // Every command says what is wrong; without this, a dead connection would end the process.
  client.on('error', () => {})
  const close = async (): Promise<void> => client.disconnect()
  if (cluster) await orClose(untilKnown(client, { hosts, tls }), close, hosts)
  return { client, close }
}

/**
 * Until its slots are known, a Cluster's client takes the hosts of the URL for nodes. The nodes may name themselves by
 * other addresses, and a command that was sent before fails when those take their place.
 */
function untilKnown(client: IoredisEvents, place: Pick<RedisTarget, 'hosts' | 'tls'>): Promise<void> {
  return new Promise((resolve, reject) => {
    let failure = new Error('Connection timeout')
    const timer = setTimeout(() => reject(failure), CONNECT_MS)
    const failed = (error: Error): void => {
      failure = error
      if (isRetryable(error)) return
      clearTimeout(timer)
      reject(error)
    }
    let isProbed = false
    // The client says that no node could be asked, the last node perhaps why. What neither tells is why there was no
    // connection.
    client.on('error', (error: Error & { lastNodeError?: Error }) => {
      const said = error.lastNodeError ?? error
      if (connectionTrouble(said)?.kind !== 'closed') failed(said)
      else if (!isProbed) {
        isProbed = true
        void probe(place).then((why) => failed(why ?? said))
      }
    })
    client.on('ready', () => {
      clearTimeout(timer)
      resolve()
    })
  })
}

/** Why the first host cannot be connected to. Undefined if it can. */
function probe({ hosts, tls }: Pick<RedisTarget, 'hosts' | 'tls'>): Promise<Error | undefined> {
  const [{ host, port } = { host: '', port: 0 }] = hosts
  return new Promise((resolve) => {
    const socket = tls ? connectTls({ host, port, servername: isIP(host) ? '' : host }) : connectSocket({ host, port })
    const end = (error?: Error): void => {
      socket.destroy()
      resolve(error)
    }
    socket.setTimeout(CONNECT_MS / 2, () => end(new Error('Connection timeout')))
    socket.on('error', end).once(tls ? 'secureConnect' : 'connect', () => end())
  })
}

async function orClose(
  connected: Promise<unknown>,
  close: () => Promise<void>,
  hosts: RedisTarget['hosts'],
): Promise<void> {
  try {
    await connected
  } catch (error) {
    await close()
    const place = `redis+cluster://${hosts.map(({ host, port }) => `${host}:${port}`).join(',')}`
    throw storeErrorFrom('open the Cluster', error, { place })
  }
}

const isRetryable = (error: unknown): boolean => {
  const known = storeErrorFrom('connect', error)
  return known instanceof StoreError && known.retryable
}

/**
 * ioredis goes on in database 0 when a connection, the first or a later one, cannot select its own. Here that
 * connection is closed before it is used: commands wait for `ready`, which comes after the answer to SELECT.
 */
function useOnlyDatabase(client: IoredisClient & IoredisEvents, database: number): void {
  let refused: StoreError | undefined
  client.on('error', (error) => {
    if (!isOfSelect(error)) return
    refused = wrongDatabase(database, error)
    client.disconnect(true)
  })
  client.on('ready', () => {
    refused = undefined
  })
  const { call } = client
  client.call = (command, ...args) => {
    if (refused !== undefined) return Promise.reject(refused)
    return call.call(client, command, ...args).catch((error: unknown) => {
      // It may have waited for a connection that could not be used.
      throw refused ?? error
    })
  }
}

/**
 * A Redis server takes the beginning of a TLS handshake for the beginning of a command, and waits for the rest. So
 * nothing comes back, and it looks like a network that swallows packets. Asked without TLS, it answers.
 */
async function speaksPlain({ host, port }: HostPort): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connectSocket({ host, port })
    const end = (answer: boolean): void => {
      socket.destroy()
      resolve(answer)
    }
    socket.setTimeout(CONNECT_MS, () => end(false))
    socket.on('error', () => end(false)).on('close', () => end(false))
    socket.once('connect', () => socket.write('PING\r\n')).once('data', (data) => end(/^[-+]/.test(data.toString())))
  })
}

/** Calls back if there is no connection after a moment because the server does not speak TLS. */
function watchForPlain(
  client: { on(event: 'ready', listener: () => void): unknown },
  host: HostPort,
  found: (error: StoreError) => void,
): void {
  const timer = setTimeout(async () => {
    if (await speaksPlain(host)) {
      const error = new Error('the server does not support SSL connections')
      found(storeErrorFrom('connect', error, { place: `rediss://${host.host}:${host.port}` }) as StoreError)
    }
  }, PLAIN_AFTER_MS)
  timer.unref()
  client.on('ready', () => clearTimeout(timer))
}

function failWithoutTls(client: IoredisClient & IoredisEvents, host: HostPort): void {
  let isReady = false
  let refuse: (error: StoreError) => void = () => {}
  const refused = new Promise<never>((_, reject) => {
    refuse = reject
  })
  refused.catch(() => {}) // Heard by those who wait for the connection, if there are any.
  client.on('ready', () => {
    isReady = true
  })
  watchForPlain(client, host, refuse)
  const { call } = client
  client.call = (command, ...args) => {
    const reply = call.call(client, command, ...args)
    return isReady ? reply : Promise.race([reply, refused])
  }
}

interface NodeRedisModule {
  createClient(options: object): NodeRedisClient & NodeRedisEvents
  createCluster(options: object): NodeRedisCluster & NodeRedisEvents & NodeRedisNodes
}

interface NodeRedisNodes {
  readonly masters: readonly NodeRedisNode[]
  readonly replicas: readonly NodeRedisNode[]
}

interface NodeRedisNode {
  readonly address: string
  /** Absent until it is needed. */
  readonly client?: { unref?(): void }
}

interface NodeRedisEvents {
  readonly isReady: boolean
  unref?(): void
  connect(): Promise<unknown>
  destroy(): void
  on(event: string, listener: (error: Error) => void): unknown
}

export async function openNodeRedis(
  { hosts, cluster, tls, username, password, database }: RedisTarget,
  { fast = false }: OpenOptions,
): Promise<OpenedClient | undefined> {
  const module = (await importIfThere('redis')) as NodeRedisModule | undefined
  if (module === undefined) return undefined
  const login = { ...(username !== undefined && { username }), ...(password !== undefined && { password }) }
  const sockets = hosts.map((host) => ({ ...host, connectTimeout: CONNECT_MS, ...(tls && { tls }) }))
  let commands: WaitingCommands | undefined
  // Its attempts to connect keep the process alive, so it stops when nobody waits for it: the next command goes on.
  const reconnectStrategy = (tries: number): number | Error =>
    tries === 0 || commands?.areThere ? Math.min(FIRST_RETRY_MS * 2 ** tries, MAX_RETRY_MS) : new Error('not needed')
  const client = cluster
    ? module.createCluster({
        rootNodes: sockets.map((socket) => ({ socket })),
        // For the nodes that the Cluster names, of which the URL says nothing.
        defaults: { ...login, ...(tls && { socket: { tls } }) },
      })
    : module.createClient({
        ...login,
        socket: { ...sockets[0], reconnectStrategy },
        database,
        disableOfflineQueue: true,
      })
  let last: Error | undefined
  client.on('error', (error) => {
    last = error
  })
  if (!cluster) {
    commands = sendWhenReady(client as NodeRedisClient & NodeRedisEvents, { database, fast })
    if (tls) watchForPlain(client, hosts[0] as HostPort, commands.refuse)
  }
  if (!cluster) client.unref?.()
  const close = async (): Promise<void> => {
    commands?.end()
    // Version 5 throws for a client that is closed.
    if (client.isOpen) client.destroy()
  }
  const connected = client.connect()
  // The client of a Cluster says that no node could be asked; what it told of the last one says why.
  const known = connected.catch((error: unknown) => {
    throw last ?? error
  })
  if (cluster) {
    await orClose(known, close, hosts)
    const unref = (): void => unrefNodes(client as NodeRedisCluster & NodeRedisNodes)
    unref()
    // Those of nodes that are found later.
    client.on('node-connect', unref)
  }
  // It goes on trying while commands wait for it.
  else known.catch(() => {})
  return { client, close }
}

function unrefNodes({ masters, replicas }: NodeRedisNodes): void {
  for (const { client } of [...masters, ...replicas]) client?.unref?.()
}

/**
 * node-redis sends what waits in its own queue right behind SELECT, before it knows the answer: in database 0, if
 * SELECT is refused. So its queue is switched off, and commands wait here until the connection is ready.
 */
function sendWhenReady(
  client: NodeRedisClient & NodeRedisEvents,
  { database, fast }: { database: number; fast: boolean },
): WaitingCommands {
  let failure: Error | undefined
  let refusal: StoreError | undefined
  let isEnded = false
  let waiting: Waiting | undefined
  const settle = (error?: Error): void => {
    waiting?.settle(error)
    waiting = undefined
  }
  client.on('ready', () => {
    failure = undefined
    refusal = undefined
    settle()
  })
  client.on('error', (error) => {
    // What was found out about TLS says more than the timeouts that follow from it.
    if (client.isReady || (failure !== undefined && !isRetryable(failure))) return
    failure = isOfSelect(error) ? wrongDatabase(database, error) : error
    if (isFinal(failure)) settle(failure)
    else waiting?.within(GRACE_MS)
  })
  // What a server refuses it will refuse again; a connection that is lost may be back at once.
  const isFinal = (error: Error): boolean => fast || !isRetryable(error) || /^[A-Z]+ /.test(error.message)

  function ready(): Promise<void> {
    if (!client.isOpen && !isEnded) {
      // Nobody waited for it. What was wrong then may be over.
      failure = refusal
      client.connect().catch(() => {}) // Told as an event, too.
    }
    if (failure !== undefined && isFinal(failure)) return Promise.reject(failure)
    const waitMs = failure === undefined ? CONNECT_MS : GRACE_MS
    waiting ??= waitFor(waitMs, () => settle(failure ?? new Error('Connection timeout')))
    return waiting.over
  }

  const { sendCommand } = client
  client.sendCommand = (args) =>
    client.isReady ? sendCommand.call(client, args) : ready().then(() => sendCommand.call(client, args))
  return {
    get areThere() {
      return waiting !== undefined
    },
    refuse(error) {
      refusal = error
      failure = error
      settle(error)
    },
    end() {
      isEnded = true
    },
  }
}

/** Those that wait for a connection. */
interface WaitingCommands {
  readonly areThere: boolean
  /** Makes those fail that wait, and those that come before there is a connection. */
  refuse(error: StoreError): void
  /** There is no further attempt to connect. */
  end(): void
}

interface Waiting {
  readonly over: Promise<void>
  /** It takes no longer than this from now on. */
  within(ms: number): void
  settle(error?: Error): void
}

function waitFor(ms: number, late: () => void): Waiting {
  let timer = setTimeout(late, ms)
  let isShort = false
  const within = (shortMs: number): void => {
    if (isShort) return
    isShort = true
    clearTimeout(timer)
    timer = setTimeout(late, shortMs)
  }
  let settle: Waiting['settle'] = () => {}
  const over = new Promise<void>((resolve, reject) => {
    settle = (error) => {
      clearTimeout(timer)
      if (error === undefined) resolve()
      else reject(error)
    }
  })
  return { over, within, settle }
}

/** Of ioredis, which says which command it was, or of redis, which does not. */
const isOfSelect = (error: Error & { command?: { name?: string } }): boolean =>
  error.command?.name === 'select' || /^(?:NOPERM|ERR) .*(?:\bselect\b|DB index)/i.test(error.message)

function wrongDatabase(database: number, error: Error): StoreError {
  const advice = 'Let the user run SELECT, or name a database that the server has'
  const message = `redis database ${database} cannot be selected: ${messageOf(error)}. ${advice}`
  return new StoreError(message, { cause: safeCause(error), retryable: false })
}

const FIRST_RETRY_MS = 50
const MAX_RETRY_MS = 500
/** Less than the core waits for a call: what is known of the failure is told. */
const CONNECT_MS = 4_500
/** How long a connection that is closed waits for the server to close it, too. It keeps the process alive meanwhile. */
const FAREWELL_MS = 500
/** After how long without a connection it is looked at whether the server speaks TLS at all. */
const PLAIN_AFTER_MS = 300
/** How long commands wait for another attempt to connect after one has failed. */
const GRACE_MS = 1_000
