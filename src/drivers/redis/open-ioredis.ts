import type { StoreError } from '../../core/errors.ts'
import { clearTimeout, setTimeout } from '../../core/time/native-time.ts'
import { connectionTrouble } from '../shared/connection-trouble.ts'
import { importIfThere } from '../shared/optional-client.ts'
import type { HostPort } from '../shared/url.ts'
import { handleAsking, type IoredisClient, type IoredisCluster, type IoredisSockets, unrefIoredis } from './ioredis.ts'
import {
  CONNECT_MS,
  FIRST_RETRY_MS,
  isOfSelect,
  isRetryable,
  MAX_RETRY_MS,
  type OpenedClient,
  type OpenOptions,
  orClose,
  probe,
  watchForPlain,
  wrongDatabase,
} from './open-checks.ts'
import { ownClients } from './unanswered.ts'
import type { RedisTarget } from './url.ts'

/** The members of the module that are used. */
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
    // Waiting commands fail with every fourth attempt, with the reason if their own timeout has not passed by then.
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
  ownClients.add(client)
  unrefIoredis(client)
  if (cluster) client.on('+node', unrefIoredis)
  if (cluster) client.on('+node', handleAsking)
  if (!cluster && tls) failWithoutTls(client as IoredisClient & IoredisEvents, hosts[0] as HostPort)
  if (database !== 0) useOnlyDatabase(client as IoredisClient & IoredisEvents, database)
  // Each command reports the error itself. Without a listener, a lost connection would end the process.
  client.on('error', () => {})
  const close = async (): Promise<void> => client.disconnect()
  if (cluster) await orClose(untilKnown(client, { hosts, tls }), close, hosts)
  return { client, close }
}

/**
 * Resolves when the client knows the slots. Until then it uses the hosts of the URL as nodes. The nodes may announce
 * other addresses. When those replace the hosts, commands that were sent before fail.
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
    // The client's error says that no node answered. The error of the last node may say why. Neither says why there was
    // no connection, so the driver tries one itself.
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

/**
 * If a connection, the first or a later one, cannot select its database, ioredis uses database 0. This closes such a
 * connection before it is used: commands wait for `ready`, which comes after the answer to SELECT.
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
      // The command may have waited for a connection that was then closed.
      throw refused ?? error
    })
  }
}

function failWithoutTls(client: IoredisClient & IoredisEvents, host: HostPort): void {
  let isReady = false
  let refuse: (error: StoreError) => void = () => {}
  const refused = new Promise<never>((_, reject) => {
    refuse = reject
  })
  refused.catch(() => {}) // Commands that wait for the connection get it by the race below.
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

/** How long a closed connection waits for the server to close it, too. It keeps the process alive meanwhile. */
const FAREWELL_MS = 500
