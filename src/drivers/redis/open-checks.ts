import { connect as connectSocket, isIP } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { StoreError } from '../../core/errors.ts'
import { messageOf, safeCause } from '../../core/foreign-errors.ts'
import { clearTimeout, setTimeout } from '../../core/time/native-time.ts'
import type { HostPort } from '../shared/url.ts'
import type { RedisClient } from './client.ts'
import { storeErrorFrom } from './errors.ts'
import type { RedisTarget } from './url.ts'

/** What open-ioredis.ts and open-node-redis.ts share: why a client cannot connect, and in which database it works. */

export interface OpenedClient {
  readonly client: RedisClient
  close(): Promise<void>
}

export interface OpenOptions {
  /** Commands fail at once if the server cannot be reached, because other servers are asked as well (Redlock). */
  readonly fast?: boolean
}

export async function orClose(
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

/** Why no connection to the first host is possible. Undefined if it is. */
export function probe({ hosts, tls }: Pick<RedisTarget, 'hosts' | 'tls'>): Promise<Error | undefined> {
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

export const isRetryable = (error: unknown): boolean => {
  const known = storeErrorFrom('connect', error)
  return known instanceof StoreError && known.retryable
}

/**
 * A Redis server without TLS mistakes a TLS handshake for the beginning of a command and waits for the rest. No answer
 * arrives, as if the network dropped the packets. Without TLS the server answers.
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

/** Calls `found` if there is no connection after a moment because the server does not speak TLS. */
export function watchForPlain(
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

/** Whether SELECT failed. ioredis names the command in its error, redis does not. */
export const isOfSelect = (error: Error & { command?: { name?: string } }): boolean =>
  error.command?.name === 'select' || /^(?:NOPERM|ERR) .*(?:\bselect\b|DB index)/i.test(messageOf(error))

export function wrongDatabase(database: number, error: Error): StoreError {
  const advice = 'Grant the user the right to SELECT, or use a database that the server has'
  const message = `redis database ${database} cannot be selected: ${messageOf(error)}. ${advice}`
  return new StoreError(message, { cause: safeCause(error), retryable: false })
}

export const FIRST_RETRY_MS = 50
export const MAX_RETRY_MS = 500
/** Less than the core waits for a call, so that the error can say why there is no connection. */
export const CONNECT_MS = 4_500
/** After how long without a connection the driver checks whether the server speaks TLS at all. */
const PLAIN_AFTER_MS = 300
