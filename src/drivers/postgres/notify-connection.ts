import { randomBytes } from 'node:crypto'
import type { AcquireAnswer, Claim, DriverListener, LeaseRef, StopListening } from '../../core/driver.ts'
import { ClosedError, StoreError } from '../../core/errors.ts'
import { systemClock } from '../../core/time/clock.ts'
import { clearInterval, setInterval } from '../../core/time/native-time.ts'
import { systemRandom } from '../../core/time/random.ts'
import { withTimeout } from '../../core/time/timeout.ts'
import { WaitingClaims } from '../shared/waiting-claims.ts'
import type { DedicatedConnection, PostgresConnections } from './connections.ts'
import { storeErrorFrom } from './errors.ts'
import { parseEvents, parseTheft, STOLEN_CHANNEL, stolenBy, type WakeEvent } from './notifications.ts'
import { quoteIdentifier } from './statements.ts'

export interface NotifyConnectionParts {
  readonly connections: PostgresConnections
  /** The channel to which the server sends what concerns the waiters of this driver. No other driver uses it. */
  readonly channel: string
  /** Sends a payload to the channel over another connection. */
  notify(payload: string): Promise<unknown>
  /** Creates the tables if they are missing. */
  prepare(): Promise<void>
  /** The statement that returns the key of the proofs. */
  readonly listenKey: string
}

/** A call that asks for claims which wait. */
export interface WaitingCall {
  /** New with every call: an event that it is part of was sent after the server had run this call. */
  readonly id: string
  /** What the call passes as the channel. */
  readonly address: string
  readonly sentMs: number
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
  readonly #claims = new WaitingClaims<WaitingCall>(systemClock)
  /** Of the proofs. Read again with every ping: an operator may have replaced it. */
  #key = ''
  #onTestMessage: ((payload: string) => void) | undefined
  #closed = false

  constructor(parts: NotifyConnectionParts) {
    this.#parts = parts
  }

  /** A request for these claims, some of which wait, is about to be sent. */
  sends(claims: readonly Claim[]): WaitingCall {
    const id = systemRandom.id()
    const address = `${this.#parts.channel}:${id}`
    const call: WaitingCall = { id, address, sentMs: systemClock.now().monotonicMs }
    this.#claims.sends(claims, call)
    return call
  }

  /** The answers to it. Only a claim that was refused goes on waiting. */
  answered(call: WaitingCall, claims: readonly Claim[], answers: readonly (AcquireAnswer | Error)[]): void {
    claims.forEach((claim, index) => {
      const answer = answers[index]
      if (answer === undefined || answer instanceof Error || answer.granted) this.#claims.forget(claim, call)
    })
  }

  /** The claim no longer waits. */
  forget(lease: LeaseRef): void {
    this.#claims.forget(lease)
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
    await this.#parts.prepare()
    const connection = await connections.dedicate({
      onNotification: (from, payload) => {
        if (from === channel) this.#onMessage(payload)
        else if (from === STOLEN_CHANNEL) this.#onTheft(payload)
      },
      onEnd,
      undo: () => `UNLISTEN ${quoteIdentifier(channel)}; UNLISTEN ${STOLEN_CHANNEL}`,
    })
    try {
      await this.#readKey(connection)
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
      this.#readKey(connection).catch((error: unknown) => {
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
    for (const event of parseEvents(payload)) this.#onEvent(event)
  }

  /**
   * Every role that can connect can send to every channel. An event that is about no claim of ours, or that is not
   * proved, is ignored. An event of the call before the newest one only makes the claim ask: its grant may have ended.
   * But the server may have run the two calls in the other order, or decided the newest one before the change that the
   * event is about.
   */
  #onEvent(event: WakeEvent): void {
    const { claimId, grant } = event
    const waiting = this.#claims.find(claimId)
    if (waiting === undefined) return
    const { claim, call, previous } = waiting
    const isNewest = event.isProvedBy(this.#key, call.id)
    if (!isNewest && (previous === undefined || !event.isProvedBy(this.#key, previous.id))) return
    for (const listener of [...this.#listeners]) {
      if (grant === undefined || !isNewest) listener.wake(claim.lockName, claimId)
      else listener.granted(claimId, grant.ttlMs <= claim.ttlMs ? grant : { ...grant, ttlMs: claim.ttlMs })
    }
  }

  async #readKey(connection: DedicatedConnection): Promise<void> {
    const [row] = await connection.query(this.#parts.listenKey)
    const key = row?.['key']
    if (typeof key !== 'string' || key === '') {
      throw new StoreError('permission denied for the sequences holdfast_key_1 and holdfast_key_2. Waiters poll')
    }
    this.#key = key
  }

  /** Core bounds what such a hint costs. */
  #onTheft(payload: string): void {
    const { lost = [], by = '' } = parseTheft(payload) ?? {}
    for (const claimId of lost) {
      for (const listener of [...this.#listeners]) listener.lost(claimId, stolenBy(by))
    }
  }

  #disconnected(subscription: Subscription, cause: unknown): void {
    clearInterval(subscription.pingTimer)
    if (this.#current !== subscription) return
    this.#current = undefined
    const listeners = [...this.#listeners]
    this.#listeners.clear()
    const error = storeErrorFrom(cause, this.#parts.connections)
    for (const listener of listeners) listener.disconnected(error)
  }

  async #stop(): Promise<void> {
    const current = this.#current
    this.#current = undefined
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
