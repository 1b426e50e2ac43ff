import type { DriverListener, StopListening } from '../../core/driver.ts'
import { ClosedError, StoreError } from '../../core/errors.ts'
import type { DedicatedConnection, PostgresConnections } from './postgres-client.ts'
import { storeErrorFrom } from './postgres-errors.ts'
import { quoteIdentifier } from './postgres-migrate.ts'

/** What `holdfast_tell` sends. */
type Event =
  | readonly ['granted', claimId: string, fencingToken: number, ttlMs: number, acquiredAtMs: number]
  | readonly ['wake', claimId: string, lockName: string]

export interface ListeningParts {
  readonly connections: PostgresConnections
  /** Where the server is told to send what concerns this driver's waiters, and nobody else's. */
  readonly channel: string
  /** Sends a payload to the channel over another connection. */
  hello(payload: string): Promise<unknown>
}

/** The one connection of a driver that hears, open while anybody listens. */
export class Listening {
  readonly #parts: ListeningParts
  readonly #listeners = new Set<DriverListener>()
  #opening: Promise<DedicatedConnection> | undefined
  #timer: NodeJS.Timeout | undefined
  #greeted: ((payload: string) => void) | undefined
  #hellos = 0
  #closed = false

  constructor(parts: ListeningParts) {
    this.#parts = parts
  }

  async listen(listener: DriverListener): Promise<StopListening> {
    if (this.#closed) throw new ClosedError('the postgres driver is closed')
    this.#opening ??= this.#open()
    const opening = this.#opening
    // Added before, so that nothing is missed; a failure takes it out again.
    this.#listeners.add(listener)
    try {
      await opening
    } catch (error) {
      this.#listeners.delete(listener)
      if (this.#opening === opening) this.#opening = undefined
      throw storeErrorFrom(error)
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

  async #open(): Promise<DedicatedConnection> {
    const { connections, channel } = this.#parts
    const connection = await connections.dedicate({
      onNotification: (heard, payload) => {
        if (heard === channel) this.#heard(payload)
        else if (heard === STOLEN_CHANNEL) this.#heardOfTheft(payload)
      },
      onEnd: (cause) => this.#deaf(cause),
      undo: () => `UNLISTEN ${quoteIdentifier(channel)}; UNLISTEN ${STOLEN_CHANNEL}`,
    })
    try {
      await connection.script(`LISTEN ${quoteIdentifier(channel)}; LISTEN ${STOLEN_CHANNEL}`)
      await this.#greet()
    } catch (error) {
      await connection.end()
      throw error
    }
    // A connection that is idle for ever looks the same as one that is half-open, and is what idle timeouts end.
    this.#timer = setInterval(() => {
      connection.query('SELECT 1').catch((error: unknown) => {
        void connection.end()
        this.#deaf(error)
      })
    }, PING_MS)
    this.#timer.unref()
    return connection
  }

  /** A pooler that gives every transaction another connection accepts LISTEN, and nothing ever arrives. */
  async #greet(): Promise<void> {
    this.#hellos += 1
    const payload = `hello ${this.#hellos}`
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
    for (const event of eventsIn(payload)) {
      for (const listener of [...this.#listeners]) {
        if (event[0] === 'wake') listener.wake(event[2], event[1])
        else {
          const [, claimId, fencingToken, ttlMs, acquiredAtMs] = event
          listener.granted(claimId, { granted: true, fencingToken, ttlMs, acquiredAtMs })
        }
      }
    }
  }

  #heardOfTheft(payload: string): void {
    const theft = theftIn(payload)
    for (const claimId of theft?.lost ?? []) {
      for (const listener of [...this.#listeners])
        listener.lost(claimId, new StoreError(`it was stolen by ${theft?.by}`))
    }
  }

  #deaf(cause: unknown): void {
    clearInterval(this.#timer)
    if (this.#opening === undefined) return
    this.#opening = undefined
    const listeners = [...this.#listeners]
    this.#listeners.clear()
    for (const listener of listeners) listener.deaf(storeErrorFrom(cause))
  }

  async #stop(): Promise<void> {
    clearInterval(this.#timer)
    const opening = this.#opening
    this.#opening = undefined
    const connection = await opening?.catch(() => undefined)
    await connection?.end().catch(() => {})
  }
}

/** Anybody may send to a channel: what is not of `holdfast_tell` is nothing. */
function eventsIn(payload: string): Event[] {
  try {
    const found: unknown = JSON.parse(payload)
    return Array.isArray(found) ? found.filter(isEvent) : []
  } catch {
    return []
  }
}

function isEvent(event: unknown): event is Event {
  if (!Array.isArray(event) || typeof event[1] !== 'string') return false
  if (event[0] === 'wake') return typeof event[2] === 'string'
  return event[0] === 'granted' && [2, 3, 4].every((place) => Number.isFinite(event[place]))
}

/** As above: undefined for what is not of `holdfast_steal`. */
function theftIn(payload: string): { readonly lost: readonly string[]; readonly by: string } | undefined {
  try {
    const { lost, by } = JSON.parse(payload) as { lost?: unknown; by?: unknown }
    return Array.isArray(lost) ? { lost, by: String(by) } : undefined
  } catch {
    return undefined
  }
}

/** Where `holdfast_steal` tells who has lost a lease. */
const STOLEN_CHANNEL = 'holdfast_stolen'

const PING_MS = 5_000
const GREETING_MS = 3_000
