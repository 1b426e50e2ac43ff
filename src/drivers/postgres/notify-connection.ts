import { randomBytes } from 'node:crypto'
import type { DriverListener, Grant, StopListening } from '../../core/driver.ts'
import { ClosedError, StoreError } from '../../core/errors.ts'
import { clearInterval, clearTimeout, setInterval, setTimeout } from '../../core/time/native-time.ts'
import { parseNumbers, parseTexts, textArray } from './arrays.ts'
import type { DedicatedConnection, PostgresConnections } from './connections.ts'
import { storeErrorFrom } from './errors.ts'
import { type Hint, Hints } from './hints.ts'
import { quoteIdentifier } from './migrate.ts'

/** What `holdfast_tell` sends. */
type Event = readonly [hint: Exclude<Hint, 'lost'>, claimId: string, lockName: string]

export interface ListeningParts {
  readonly connections: PostgresConnections
  /** Where the server is told to send what concerns this driver's waiters, and nobody else's. */
  readonly channel: string
  /** Sends a payload to the channel over another connection. */
  hello(payload: string): Promise<unknown>
  /** The statement that tells which claims hold their lock. */
  readonly granted: string
}

/**
 * One time of listening: a connection that is opened, and what keeps it. The one before it may still be ending, and has
 * no say in it.
 */
interface Subscription {
  opened: Promise<DedicatedConnection>
  timer?: NodeJS.Timeout
}

/** The one connection of a driver that hears, open while anybody listens. */
export class NotifyConnection {
  readonly #parts: ListeningParts
  readonly #listeners = new Set<DriverListener>()
  #current: Subscription | undefined
  readonly #hints = new Hints({ listeners: this.#listeners, confirm: (claims) => this.#confirm(claims) })
  #greeted: ((payload: string) => void) | undefined
  #closed = false

  constructor(parts: ListeningParts) {
    this.#parts = parts
  }

  async listen(listener: DriverListener): Promise<StopListening> {
    if (this.#closed) throw new ClosedError('the postgres driver is closed')
    const current = this.#current ?? this.#subscribe()
    // Added before, so that nothing is missed; a failure takes it out again.
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
    const keep = (connection: DedicatedConnection): void => this.#keep(subscription, connection)
    // Whoever waits for it is told of a failure.
    subscription.opened.then(keep, () => {})
    return subscription
  }

  async #open(onEnd: (cause: unknown) => void): Promise<DedicatedConnection> {
    const { connections, channel } = this.#parts
    const connection = await connections.dedicate({
      onNotification: (heard, payload) => {
        if (heard === channel) this.#heard(payload)
        else if (heard === STOLEN_CHANNEL) this.#heardOfTheft(payload)
      },
      onEnd,
      undo: () => `UNLISTEN ${quoteIdentifier(channel)}; UNLISTEN ${STOLEN_CHANNEL}`,
    })
    try {
      await connection.script(`LISTEN ${quoteIdentifier(channel)}; LISTEN ${STOLEN_CHANNEL}`)
      await this.#greet()
    } catch (error) {
      await endQuietly(connection)
      throw error
    }
    return connection
  }

  /** A connection that is idle for ever looks the same as one that is half-open, and is what idle timeouts end. */
  #keep(subscription: Subscription, connection: DedicatedConnection): void {
    if (this.#current !== subscription) return
    // Who waits for a message keeps the process alive, not who may get one.
    connection.keepAlive(false)
    subscription.timer = setInterval(() => {
      connection.query('SELECT 1').catch((error: unknown) => {
        void endQuietly(connection)
        this.#disconnected(subscription, error)
      })
    }, PING_MS)
    subscription.timer.unref()
  }

  /** A pooler that gives every transaction another connection accepts LISTEN, and nothing ever arrives. */
  async #greet(): Promise<void> {
    // Not to be guessed, or a stranger could hide that nothing arrives.
    const payload = `hello ${randomBytes(12).toString('hex')}`
    let timer: NodeJS.Timeout | undefined
    const arrived = new Promise<void>((resolve, reject) => {
      this.#greeted = (heard) => heard === payload && resolve()
      const reason =
        'notifications do not arrive, as with a pooler in transaction mode in between; waiters poll. ' +
        'Let the driver reach PostgreSQL itself to have them woken'
      timer = setTimeout(() => reject(new StoreError(reason)), GREETING_MS)
    })
    try {
      await Promise.all([arrived, this.#parts.hello(payload)])
    } finally {
      clearTimeout(timer)
      this.#greeted = undefined
    }
  }

  #heard(payload: string): void {
    if (!payload.startsWith('[')) {
      this.#greeted?.(payload)
      return
    }
    for (const [hint, claimId, about] of eventsIn(payload)) this.#hints.add(claimId, { hint, about })
  }

  /** On the connection that has heard of them: no other one of the pool has to be free for it. */
  async #confirm(claims: ReadonlyMap<string, string>): Promise<ReadonlyMap<string, Grant>> {
    const connection = await this.#current?.opened
    if (connection === undefined) return new Map()
    const values = [textArray([...claims.values()]), textArray([...claims.keys()])]
    const [row] = await connection.queryOften(this.#parts.granted, values)
    const column = (name: string): string | null => row?.[name] as string | null
    const [tokens, times, moments] = ['granted_tokens', 'granted_ms', 'granted_at'].map((name) =>
      parseNumbers(column(name)),
    )
    return new Map(
      parseTexts(column('granted_claims')).map((claimId, index) => {
        const [fencingToken, ttlMs, acquiredAtMs] = [tokens, times, moments].map((list) => list?.[index] as number)
        return [claimId, { granted: true, fencingToken, ttlMs, acquiredAtMs } as Grant]
      }),
    )
  }

  #heardOfTheft(payload: string): void {
    const theft = theftIn(payload)
    for (const claimId of theft?.lost ?? []) this.#hints.add(claimId, { hint: 'lost', about: theft?.by ?? '' })
  }

  #disconnected(subscription: Subscription, cause: unknown): void {
    clearInterval(subscription.timer)
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
    clearInterval(current?.timer)
    // One that could not be opened need not be closed.
    const connection = await current?.opened.catch(() => undefined)
    if (connection !== undefined) await endQuietly(connection)
  }
}

/**
 * What is ended is used no more: an end that fails, as that of a connection that is broken, changes nothing, and hides
 * nothing that was told before it.
 */
async function endQuietly(connection: DedicatedConnection): Promise<void> {
  await connection.end().catch(() => {})
}

/** Anybody may send to a channel: what does not look like something of `holdfast_tell` is ignored. */
function eventsIn(payload: string): Event[] {
  try {
    const found: unknown = JSON.parse(payload)
    return Array.isArray(found) ? found.filter(isEvent) : []
  } catch {
    return []
  }
}

function isEvent(event: unknown): event is Event {
  if (!Array.isArray(event) || event.length !== 3) return false
  const [hint, claimId, lockName] = event
  return (hint === 'granted' || hint === 'wake') && typeof claimId === 'string' && typeof lockName === 'string'
}

/** As above: undefined for what is not of `holdfast_steal`. */
function theftIn(payload: string): { readonly lost: readonly string[]; readonly by: string } | undefined {
  try {
    const { lost, by } = JSON.parse(payload) as { lost?: unknown; by?: unknown }
    return Array.isArray(lost) ? { lost: lost.filter((each) => typeof each === 'string'), by: String(by) } : undefined
  } catch {
    return undefined
  }
}

/** Where `holdfast_steal` tells who has lost a lease. */
const STOLEN_CHANNEL = 'holdfast_stolen'

const PING_MS = 5_000
const GREETING_MS = 3_000
