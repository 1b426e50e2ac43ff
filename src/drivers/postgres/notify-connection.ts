import { hash, randomBytes } from 'node:crypto'
import type { DriverListener, Grant, StopListening } from '../../core/driver.ts'
import { ClosedError, StoreError } from '../../core/errors.ts'
import { MAX_HOLDER_ID_LENGTH } from '../../core/limits.ts'
import { withTimeout } from '../../core/time/abort.ts'
import { systemClock } from '../../core/time/clock.ts'
import { clearInterval, setInterval } from '../../core/time/native-time.ts'
import type { DedicatedConnection, PostgresConnections } from './connections.ts'
import { storeErrorFrom } from './errors.ts'
import { quoteIdentifier } from './statements.ts'

export interface NotifyConnectionParts {
  readonly connections: PostgresConnections
  /** The channel to which the server sends what concerns the waiters of this driver. No other driver uses it. */
  readonly channel: string
  readonly statements: Readonly<Record<'hello' | 'listen_key', string>>
  /** Creates the tables if they are missing. */
  prepare(): Promise<void>
}

/** One connection that listens. The one before it may still be closing, and must not affect this one. */
interface Subscription {
  opened?: Promise<DedicatedConnection>
  /** Notifications arrive. */
  isReady?: boolean
  pingTimer?: NodeJS.Timeout
}

/** The connection of a driver that receives notifications. It is open while there are listeners. */
export function createNotifyConnection({ connections, channel, statements, prepare }: NotifyConnectionParts) {
  const listeners = new Set<DriverListener>()
  let current: Subscription | undefined
  let closed = false

  async function listen(listener: DriverListener): Promise<StopListening> {
    if (closed) throw new ClosedError('the postgres driver is closed')
    const subscription = current ?? {}
    current = subscription
    subscription.opened ??= open(subscription)
    // Added before the connection is open, so that it misses nothing.
    listeners.add(listener)
    try {
      await subscription.opened
    } catch (error) {
      listeners.delete(listener)
      if (current === subscription) current = undefined
      throw storeErrorFrom(error, connections)
    }
    return async () => {
      listeners.delete(listener)
      if (listeners.size === 0) await stop()
    }
  }

  async function open(subscription: Subscription): Promise<DedicatedConnection> {
    await prepare()
    let key = ''
    // Random, so that no other client can send it and hide that nothing arrives.
    const hello = `hello ${randomBytes(12).toString('hex')}`
    let arrive = (): void => {}
    const arrived = new Promise<void>((resolve) => {
      arrive = resolve
    })
    const connection = await connections.dedicate({
      onNotification(from, payload) {
        if (from === FORCED_CHANNEL) reportForced(payload)
        else if (from === channel && payload === hello) arrive()
        else if (from === channel) for (const event of parseEvents(payload)) report(event, key)
      },
      onEnd: (cause) => disconnected(subscription, cause),
      undo: () => `UNLISTEN ${quoteIdentifier(channel)}; UNLISTEN ${FORCED_CHANNEL}`,
    })
    /** The key of the proofs. Read again with every ping: an operator may have replaced it. */
    async function readKey(): Promise<void> {
      const [row] = await connection.query(statements.listen_key)
      if (typeof row?.['key'] !== 'string' || row['key'] === '') {
        throw new StoreError('permission denied for the sequences holdfast_key_1 and holdfast_key_2. Waiters poll')
      }
      key = row['key']
    }
    try {
      await readKey()
      await connection.script(`LISTEN ${quoteIdentifier(channel)}; LISTEN ${FORCED_CHANNEL}`)
      // A pooler in transaction mode accepts LISTEN, but no notification ever arrives.
      await connections.query(statements.hello, [channel, hello])
      // Only from here: on a busy client the request above may have waited for others.
      await withTimeout(systemClock, DELIVERY_MS, arrived, () => new StoreError(NOT_DELIVERED))
    } catch (error) {
      await endQuietly(connection)
      throw error
    }
    if (current !== subscription) return connection
    subscription.isReady = true
    // A waiter keeps the process alive. The connection over which it may be woken does not.
    connection.keepAlive(false)
    // A connection without traffic cannot be told from a half-open one, and idle timeouts would end it.
    subscription.pingTimer = setInterval(() => {
      readKey().catch((error: unknown) => {
        void endQuietly(connection)
        disconnected(subscription, error)
      })
    }, PING_MS)
    subscription.pingTimer.unref()
    return connection
  }

  /** Hints are proved, too: a flood of forged ones must not cost queries. */
  function report({ claimId, grant, isProvedBy }: WakeEvent, key: string): void {
    const isProved = (secret: string): boolean => isProvedBy(key, secret)
    for (const listener of [...listeners]) {
      if (grant === undefined) listener.wake({ claimId }, isProved)
      else listener.granted(claimId, grant, isProved)
    }
  }

  /** Core bounds what such a hint costs. */
  function reportForced(payload: string): void {
    const { lost = [], by = '' } = parseForced(payload) ?? {}
    // Any client can write `by`.
    const cause = new StoreError(`it was force-released by ${by.slice(0, MAX_HOLDER_ID_LENGTH)}`)
    for (const claimId of lost) {
      for (const listener of [...listeners]) listener.lost(claimId, cause)
    }
  }

  function disconnected(subscription: Subscription, cause: unknown): void {
    clearInterval(subscription.pingTimer)
    if (current !== subscription) return
    current = undefined
    const error = storeErrorFrom(cause, connections)
    const notified = [...listeners]
    listeners.clear()
    for (const listener of notified) listener.disconnected(error)
  }

  async function stop(): Promise<void> {
    const stopped = current
    current = undefined
    clearInterval(stopped?.pingTimer)
    // One that failed to open needs no closing.
    const connection = await stopped?.opened?.catch(() => undefined)
    if (connection !== undefined) await endQuietly(connection)
  }

  async function close(): Promise<void> {
    closed = true
    listeners.clear()
    await stop()
  }

  return { listen, isListening: () => current?.isReady === true, close }
}

/** The connection is not used any more. An error while it closes, for example because it is broken, changes nothing. */
async function endQuietly(connection: DedicatedConnection): Promise<void> {
  await connection.end().catch(() => {})
}

const PING_MS = 5_000
const DELIVERY_MS = 3_000

const NOT_DELIVERED =
  'notifications do not arrive, probably because of a pooler in transaction mode in between. Waiters poll. ' +
  'Connect the driver to PostgreSQL directly to have them woken'

/** Every role that can connect can send to a channel. A payload without the expected form is ignored. */

/** One event of `holdfast_send_events`. Its texts stay as they were sent: the proof is about them. */
interface WakeEvent {
  readonly claimId: string
  /** Absent: the claim should ask again. */
  readonly grant?: Grant
  /** Whether it was sent by a client that knows the key, about the call with this random text. */
  isProvedBy(key: string, callId: string): boolean
}

/** The channel of `holdfast_acquire_by_force`. */
const FORCED_CHANNEL = 'holdfast_stolen'

export function parseEvents(payload: string): WakeEvent[] {
  try {
    const found: unknown = JSON.parse(payload)
    return Array.isArray(found) ? found.flatMap((event) => eventFrom(event) ?? []) : []
  } catch {
    return []
  }
}

function eventFrom(event: unknown): WakeEvent | undefined {
  if (!Array.isArray(event) || event.length !== 5 || !event.every((part) => typeof part === 'string')) return undefined
  const [claimId, token, acquiredAt, ttl, proof] = event as [string, string, string, string, string]
  const isProvedBy = (key: string, callId: string): boolean => {
    const told = `${key} ${callId} ${token} ${acquiredAt} ${ttl} ${claimId} ${key}`
    return proof === hash('sha256', told)
  }
  if (token === '' && acquiredAt === '' && ttl === '') return { claimId, isProvedBy }
  const [fencingToken, acquiredAtMs, ttlMs] = [Number(token), Number(acquiredAt), Number(ttl)]
  if (!Number.isSafeInteger(fencingToken) || !(fencingToken > 0 && acquiredAtMs > 0 && ttlMs > 0)) return undefined
  return { claimId, grant: { granted: true, fencingToken, ttlMs, acquiredAtMs }, isProvedBy }
}

/** What `holdfast_acquire_by_force` sends: the claims whose leases were ended by force, and the new holder. */
export function parseForced(payload: string): { lost: readonly string[]; by: string } | undefined {
  try {
    const { lost, by } = JSON.parse(payload) as { lost?: unknown; by?: unknown }
    return Array.isArray(lost) ? { lost: lost.filter((each) => typeof each === 'string'), by: String(by) } : undefined
  } catch {
    return undefined
  }
}
