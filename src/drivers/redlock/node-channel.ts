import type { StopListening } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import type { Subscriber } from '../redis/connection.ts'
import type { RedlockNode } from '../redis/driver.ts'
import { inTime, storeErrorFrom } from '../redis/errors.ts'

export interface NodeChannelParts {
  readonly nodes: readonly RedlockNode[]
  readonly quorum: number
  readonly clock: Clock
  readonly channel: string
  message(node: RedlockNode, text: string): void
}

/**
 * A channel on which every node publishes. It is open while there are listeners, and subscribes to at least a quorum of
 * the nodes.
 */
export class NodeChannel<Listener extends { disconnected(cause: Error): void }> {
  readonly listeners = new Set<Listener>()
  readonly #parts: NodeChannelParts
  #session: Promise<Session> | undefined

  constructor(parts: NodeChannelParts) {
    this.#parts = parts
  }

  async listen(listener: Listener, timeoutMs: number): Promise<StopListening> {
    this.#session ??= this.#start(timeoutMs).catch((error: unknown) => {
      this.#session = undefined
      throw error
    })
    await this.#session
    this.listeners.add(listener)
    return async () => {
      this.listeners.delete(listener)
      if (this.listeners.size === 0) this.end()
    }
  }

  end(): void {
    const session = this.#session
    this.#session = undefined
    this.listeners.clear()
    session?.then(endAll, () => {}) // A session that failed to open is closed already, and its caller has the error.
  }

  async #start(timeoutMs: number): Promise<Session> {
    const session: Session = { subscribers: new Set(), timers: new Set(), over: false }
    const opening = this.#parts.nodes.map((node) => this.#subscribe(session, node, timeoutMs))
    await enoughOf(opening, this.#parts.quorum).catch((error: unknown) => {
      endAll(session)
      throw error
    })
    return session
  }

  /** Rejects if it fails. Another attempt is scheduled all the same. */
  async #subscribe(session: Session, driver: RedlockNode, timeoutMs: number): Promise<void> {
    const attempt: Attempt = { subscriber: undefined, over: false }
    try {
      const open = (): Promise<void> => this.#open(session, driver, attempt, timeoutMs)
      await inTime('subscribe', timeoutMs, open, driver.connection)
    } catch (error) {
      attempt.over = true
      attempt.subscriber?.end()
      this.#subscribeLater(session, driver, timeoutMs)
      throw error
    }
  }

  async #open(session: Session, driver: RedlockNode, attempt: Attempt, timeoutMs: number): Promise<void> {
    const [node] = await driver.connection.nodes()
    if (node === undefined) throw new StoreError('the node cannot be reached')
    const subscriber = await node.subscriber({
      message: (_channel, text) => this.#parts.message(driver, text),
      closed: (cause) => {
        attempt.over = true
        // If the subscription is not open yet, opening it fails.
        if (attempt.subscriber === undefined || !session.subscribers.delete(attempt.subscriber)) return
        if (session.subscribers.size < this.#parts.quorum)
          this.#lost(session, storeErrorFrom('listen', cause, driver.connection))
        else this.#subscribeLater(session, driver, timeoutMs)
      },
    })
    attempt.subscriber = subscriber
    await subscriber.subscribe(this.#parts.channel, false)
    // It timed out, its connection was lost, or there is no listener any more.
    if (attempt.over || session.over) {
      subscriber.end()
      throw new StoreError('the subscription ended while it was opened')
    }
    session.subscribers.add(subscriber)
  }

  /** While the other nodes are a quorum, nothing else would subscribe to this one again. */
  #subscribeLater(session: Session, driver: RedlockNode, timeoutMs: number): void {
    if (session.over) return
    const timer = this.#parts.clock.setTimer(() => {
      session.timers.delete(timer)
      this.#subscribe(session, driver, timeoutMs).catch(() => {}) // It schedules another attempt itself.
    }, SUBSCRIBE_AGAIN_MS)
    session.timers.add(timer)
  }

  #lost(session: Session, cause: Error): void {
    if (session.over) return
    const listeners = [...this.listeners]
    this.end()
    endAll(session)
    for (const listener of listeners) listener.disconnected(cause)
  }
}

interface Session {
  readonly subscribers: Set<Subscriber>
  /** For the next attempts to subscribe to nodes. */
  readonly timers: Set<Timer>
  over: boolean
}

/** One attempt to subscribe to a node. */
interface Attempt {
  subscriber: Subscriber | undefined
  over: boolean
}

function endAll(session: Session): void {
  session.over = true
  for (const timer of session.timers) timer.cancel()
  for (const subscriber of session.subscribers) subscriber.end()
}

/** Resolves when `enough` promises have resolved. Rejects when too few are left for that. */
function enoughOf(promises: readonly Promise<void>[], enough: number): Promise<void> {
  return new Promise((resolve, reject) => {
    let [done, failed] = [0, 0]
    for (const promise of promises) {
      promise.then(
        () => {
          done += 1
          if (done >= enough) resolve()
        },
        (error: unknown) => {
          failed += 1
          if (failed > promises.length - enough) reject(error)
        },
      )
    }
  })
}

const SUBSCRIBE_AGAIN_MS = 1_000
