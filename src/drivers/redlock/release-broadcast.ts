import type { DriverListener, LeaseRef, StopListening } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import type { Subscriber } from '../redis/connection.ts'
import type { RedlockNode } from '../redis/driver.ts'
import { inTime, storeErrorFrom } from '../redis/errors.ts'
import { releaseArgs } from '../redis/format.ts'
import { COUNTER } from '../redis/keys.ts'
import { leasesCall } from '../redis/send-batch.ts'
import { SharedCall } from '../redis/shared-call.ts'

export interface ReleaseBroadcastParts {
  readonly nodes: readonly RedlockNode[]
  readonly quorum: number
  readonly clock: Clock
}

/**
 * Notifies the waiters of a Redlock that a lock was released. The nodes have no queue, so the message goes to every
 * subscriber. Each node publishes it in the same step as the release, and a client subscribes to at least a quorum.
 *
 * Waiters are woken when the message has arrived from a quorum of the nodes. Before that, a claim would be refused, and
 * would not ask again until its next poll. If it does not arrive from a quorum, because nodes are down or not
 * subscribed to, waiters are woken a little later.
 */
export class ReleaseBroadcast {
  readonly #parts: ReleaseBroadcastParts
  readonly #listeners = new Set<DriverListener>()
  /** The newest messages, each with the nodes from which it arrived. */
  readonly #received = new Map<string, Received>()
  #session: Promise<Session> | undefined

  constructor(parts: ReleaseBroadcastParts) {
    this.#parts = parts
  }

  async listen(listener: DriverListener, timeoutMs: number): Promise<StopListening> {
    this.#session ??= this.#start(timeoutMs).catch((error: unknown) => {
      this.#session = undefined
      throw error
    })
    await this.#session
    this.#listeners.add(listener)
    return async () => {
      this.#listeners.delete(listener)
      if (this.#listeners.size === 0) this.end()
    }
  }

  end(): void {
    const session = this.#session
    this.#session = undefined
    this.#listeners.clear()
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
      message: (_channel, text) => this.#message(driver, text),
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
    await subscriber.subscribe(CHANNEL, false)
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
    const listeners = [...this.#listeners]
    this.end()
    endAll(session)
    for (const listener of listeners) listener.disconnected(cause)
  }

  #message(node: RedlockNode, text: string): void {
    const lockName = lockNameIn(text)
    if (lockName === undefined) return
    const { from, timer } = this.#received.get(text) ?? this.#receiveFirst(text, lockName)
    if (from.has(node)) return
    from.add(node)
    if (from.size !== this.#parts.quorum) return
    timer.cancel()
    this.#wake(lockName)
  }

  #receiveFirst(text: string, lockName: string): Received {
    const timer = this.#parts.clock.setTimer(() => this.#wake(lockName), PATIENCE_MS)
    const received = { from: new Set<RedlockNode>(), timer }
    this.#received.set(text, received)
    const [oldest] = this.#received
    if (this.#received.size > MAX_REMEMBERED && oldest !== undefined) {
      this.#received.delete(oldest[0])
      // In a flood of forged messages, timers must not pile up either.
      oldest[1].timer.cancel()
    }
    return received
  }

  #wake(lockName: string): void {
    for (const listener of [...this.#listeners]) listener.wake(lockName)
  }
}

/** A release with its messages. `id` is new with each call: a repeated release wakes waiters again. */
export const publishedRelease = (leases: readonly LeaseRef[], id: string): SharedCall<LeaseRef> =>
  new SharedCall(leases, (prefix, requests) =>
    leasesCall({
      prefix,
      counter: COUNTER,
      operation: 'release',
      requests,
      args: releaseArgs(requests),
      publication: { channel: CHANNEL, text: messagesOf(requests, id) },
    }),
  )

export const publishRefused = (): StoreError => new StoreError(`the server refused to publish on ${CHANNEL}`)

/** Undefined for a message of another format: any client can publish on the channel. */
export function lockNameIn(text: string): string | undefined {
  if (text.length > MAX_MESSAGE) return undefined
  try {
    const parts: unknown = JSON.parse(text)
    return Array.isArray(parts) && typeof parts[0] === 'string' ? parts[0] : undefined
  } catch {
    return undefined
  }
}

/** One in each line. A lease that is released under several tokens has one message. */
function messagesOf(leases: readonly LeaseRef[], id: string): string {
  const lines = new Set<string>()
  for (const { lockName, claimId } of leases) lines.add(JSON.stringify([lockName, claimId, id]))
  return [...lines].join('\n')
}

interface Received {
  readonly from: Set<RedlockNode>
  /** Wakes the waiters if the message does not arrive from a quorum. */
  readonly timer: Timer
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

const CHANNEL = 'holdfast:released'
const MAX_REMEMBERED = 1_000
/** A name, a claim's id and the id of the call, with every character escaped, are shorter. They are kept. */
const MAX_MESSAGE = 4_096
const SUBSCRIBE_AGAIN_MS = 1_000
/**
 * How long to wait for the message from a quorum. A claim that asks earlier is refused. If a node is further away than
 * this, a hand-off takes one more request.
 */
const PATIENCE_MS = 150
