import type { StoreError } from '../../core/errors.ts'
import { messageOf } from '../../core/foreign-errors.ts'
import { clearTimeout, setTimeout } from '../../core/time/native-time.ts'
import { importIfThere } from '../shared/optional-client.ts'
import type { HostPort } from '../shared/url.ts'
import type { NodeRedisClient, NodeRedisCluster } from './node-redis.ts'
import {
  CONNECT_MS,
  FIRST_RETRY_MS,
  isOfSelect,
  isRetryable,
  MAX_RETRY_MS,
  type OpenedClient,
  type OpenOptions,
  orClose,
  watchForPlain,
  wrongDatabase,
} from './open-checks.ts'
import { ownClients } from './unanswered.ts'
import type { RedisTarget } from './url.ts'

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
  /** Absent until the first command to the node. */
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
  // Attempts to connect keep the process alive, so they stop when no command waits. The next command starts them again.
  const reconnectStrategy = (tries: number): number | Error =>
    tries === 0 || commands?.areThere ? Math.min(FIRST_RETRY_MS * 2 ** tries, MAX_RETRY_MS) : new Error('not needed')
  const client = cluster
    ? module.createCluster({
        rootNodes: sockets.map((socket) => ({ socket })),
        // For nodes that are not in the URL.
        defaults: { ...login, ...(tls && { socket: { tls } }) },
      })
    : module.createClient({
        ...login,
        socket: { ...sockets[0], reconnectStrategy },
        database,
        disableOfflineQueue: true,
      })
  ownClients.add(client)
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
    // Version 5 throws if the client is closed.
    if (client.isOpen) client.destroy()
  }
  const connected = client.connect()
  // The error of a Cluster client only says that no node answered. The last event says why.
  const known = connected.catch((error: unknown) => {
    throw last ?? error
  })
  if (cluster) {
    await orClose(known, close, hosts)
    const unref = (): void => unrefNodes(client as NodeRedisCluster & NodeRedisNodes)
    unref()
    // For nodes that are found later.
    client.on('node-connect', unref)
  }
  // It keeps trying while commands wait.
  else known.catch(() => {})
  return { client, close }
}

function unrefNodes({ masters, replicas }: NodeRedisNodes): void {
  for (const { client } of [...masters, ...replicas]) client?.unref?.()
}

/**
 * node-redis sends its queued commands right behind SELECT, before the answer: in database 0, if SELECT is refused. So
 * its queue is switched off, and commands wait here until the connection is ready.
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
    // A known problem with TLS says more than the timeouts that follow from it.
    if (client.isReady || (failure !== undefined && !isRetryable(failure))) return
    failure = isOfSelect(error) ? wrongDatabase(database, error) : error
    if (isFinal(failure)) settle(failure)
    else waiting?.within(GRACE_MS)
  })
  // What a server refuses, it will refuse again. A lost connection may be back at once.
  const isFinal = (error: Error): boolean => fast || !isRetryable(error) || /^[A-Z]+ /.test(messageOf(error))

  function ready(): Promise<void> {
    if (!client.isOpen && !isEnded) {
      // It stopped trying because no command waited. The problem may be solved by now.
      failure = refusal
      client.connect().catch(() => {}) // The `error` event reports it, too.
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

/** The commands that wait for a connection. */
interface WaitingCommands {
  readonly areThere: boolean
  /** Fails the commands that wait, and those that follow before there is a connection. */
  refuse(error: StoreError): void
  /** No command starts another attempt to connect. */
  end(): void
}

interface Waiting {
  readonly over: Promise<void>
  /** Shortens the wait to this time from now on. */
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

/** How long commands wait for another attempt to connect after one has failed. */
const GRACE_MS = 1_000
