import { randomBytes } from 'node:crypto'
import type { DriverListener, Grant, StopListening } from '../../core/driver.ts'
import { ClosedError, StoreError } from '../../core/errors.ts'
import { systemClock } from '../../core/time/clock.ts'
import { clearInterval, setInterval } from '../../core/time/native-time.ts'
import { withTimeout } from '../../core/time/timeout.ts'
import { parseNumbers, parseTexts, textArray } from './arrays.ts'
import type { DedicatedConnection, PostgresConnections } from './connections.ts'
import { storeErrorFrom } from './errors.ts'
import { HintQueue } from './hint-queue.ts'
import { parseEvents, parseTheft, STOLEN_CHANNEL, stolenBy } from './notifications.ts'
import { quoteIdentifier } from './statements.ts'

export interface NotifyConnectionParts {
  readonly connections: PostgresConnections
  /** The channel to which the server sends what concerns the waiters of this driver. No other driver uses it. */
  readonly channel: string
  /** Sends a payload to the channel over another connection. */
  notify(payload: string): Promise<unknown>
  /** The statement that says which claims hold their lock. */
  readonly granted: string
}

/** One connection that listens. The one before it may still be closing, and must not affect this one. */
interface Subscription {
  opened: Promise<DedicatedConnection>
  pingTimer?: NodeJS.Timeout
}

/** The connection of a driver that receives notifications. It is open while there are listeners. */
export class NotifyConnection {
  readonly #parts: NotifyConnectionParts
  readonly #listeners = new Set<DriverListener>()
  #current: Subscription | undefined
  readonly #hints = new HintQueue({ listeners: this.#listeners, confirm: (claims) => this.#confirm(claims) })
  #onTestMessage: ((payload: string) => void) | undefined
  #closed = false

  constructor(parts: NotifyConnectionParts) {
    this.#parts = parts
  }

  async listen(listener: DriverListener): Promise<StopListening> {
    if (this.#closed) throw new ClosedError('the postgres driver is closed')
    const current = this.#current ?? this.#subscribe()
    // Added before the connection is open, so that it misses nothing.
    this.#listeners.add(listener)
    try {
      await current.opened
    } catch (error) {
      this.#listeners.delete(listener)
      if (this.#current === current) this.#current = undefined
      throw storeErrorFrom(error, this.#parts.connections)
    }
    return async () => {
      this.#listeners.delete(listener)
      if (this.#listeners.size === 0) await this.#stop()
    }
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#listeners.clear()
    await this.#stop()
  }

  #subscribe(): Subscription {
    let disconnected = (_: unknown): void => {}
    const subscription: Subscription = { opened: this.#open((cause) => disconnected(cause)) }
    disconnected = (cause) => this.#disconnected(subscription, cause)
    this.#current = subscription
    const onOpen = (connection: DedicatedConnection): void => this.#startPings(subscription, connection)
    // `listen` reports a failure to its caller.
    subscription.opened.then(onOpen, () => {})
    return subscription
  }

  async #open(onEnd: (cause: unknown) => void): Promise<DedicatedConnection> {
    const { connections, channel } = this.#parts
    const connection = await connections.dedicate({
      onNotification: (from, payload) => {
        if (from === channel) this.#onMessage(payload)
        else if (from === STOLEN_CHANNEL) this.#onTheft(payload)
      },
      onEnd,
      undo: () => `UNLISTEN ${quoteIdentifier(channel)}; UNLISTEN ${STOLEN_CHANNEL}`,
    })
    try {
      await connection.script(`LISTEN ${quoteIdentifier(channel)}; LISTEN ${STOLEN_CHANNEL}`)
      await this.#testDelivery()
    } catch (error) {
      await endQuietly(connection)
      throw error
    }
    return connection
  }

  /** A connection without traffic cannot be told from a half-open one, and idle timeouts would end it. */
  #startPings(subscription: Subscription, connection: DedicatedConnection): void {
    if (this.#current !== subscription) return
    // A waiter keeps the process alive. The connection over which it may be woken does not.
    connection.keepAlive(false)
    subscription.pingTimer = setInterval(() => {
      connection.query('SELECT 1').catch((error: unknown) => {
        void endQuietly(connection)
        this.#disconnected(subscription, error)
      })
    }, PING_MS)
    subscription.pingTimer.unref()
  }

  /** A pooler in transaction mode accepts LISTEN, but no notification ever arrives. */
  async #testDelivery(): Promise<void> {
    // Random, so that no other client can send it and hide that nothing arrives.
    const payload = `hello ${randomBytes(12).toString('hex')}`
    let arrive = (): void => {}
    const arrived = new Promise<void>((resolve) => {
      arrive = resolve
    })
    this.#onTestMessage = (received) => {
      if (received === payload) arrive()
    }
    const late = (): StoreError =>
      new StoreError(
        'notifications do not arrive, probably because of a pooler in transaction mode in between. Waiters poll. ' +
          'Connect the driver to PostgreSQL directly to have them woken',
      )
    try {
      await this.#parts.notify(payload)
      // Only from here: on a busy client the request above may have waited for others.
      await withTimeout(systemClock, DELIVERY_MS, arrived, late)
    } finally {
      this.#onTestMessage = undefined
    }
  }

  #onMessage(payload: string): void {
    if (!payload.startsWith('[')) {
      this.#onTestMessage?.(payload)
      return
    }
    for (const [kind, claimId, lockName] of parseEvents(payload)) this.#hints.add(claimId, { kind, lockName })
  }

  /** Core bounds what such a hint costs. */
  #onTheft(payload: string): void {
    const { lost = [], by = '' } = parseTheft(payload) ?? {}
    for (const claimId of lost) {
      for (const listener of [...this.#listeners]) listener.lost(claimId, stolenBy(by))
    }
  }

  /** Uses the connection that listens, so that it does not have to wait for a free one of the pool. */
  async #confirm(claims: ReadonlyMap<string, string>): Promise<ReadonlyMap<string, Grant>> {
    const connection = await this.#current?.opened
    if (connection === undefined) return new Map()
    const values = [textArray([...claims.values()]), textArray([...claims.keys()])]
    const [row] = await connection.queryOften(this.#parts.granted, values)
    const column = (name: string): string | null => row?.[name] as string | null
    const [tokens, ttls, grantTimes] = ['granted_tokens', 'granted_ms', 'granted_at'].map((name) =>
      parseNumbers(column(name)),
    )
    return new Map(
      parseTexts(column('granted_claims')).map((claimId, index) => {
        const [fencingToken, ttlMs, acquiredAtMs] = [tokens, ttls, grantTimes].map((list) => list?.[index] as number)
        return [claimId, { granted: true, fencingToken, ttlMs, acquiredAtMs } as Grant]
      }),
    )
  }

  #disconnected(subscription: Subscription, cause: unknown): void {
    clearInterval(subscription.pingTimer)
    if (this.#current !== subscription) return
    this.#current = undefined
    this.#hints.clear()
    const listeners = [...this.#listeners]
    this.#listeners.clear()
    const error = storeErrorFrom(cause, this.#parts.connections)
    for (const listener of listeners) listener.disconnected(error)
  }

  async #stop(): Promise<void> {
    const current = this.#current
    this.#current = undefined
    this.#hints.clear()
    clearInterval(current?.pingTimer)
    // One that failed to open needs no closing.
    const connection = await current?.opened.catch(() => undefined)
    if (connection !== undefined) await endQuietly(connection)
  }
}

/** The connection is not used any more. An error while it closes, for example because it is broken, changes nothing. */
async function endQuietly(connection: DedicatedConnection): Promise<void> {
  await connection.end().catch(() => {})
}

const PING_MS = 5_000
const DELIVERY_MS = 3_000
