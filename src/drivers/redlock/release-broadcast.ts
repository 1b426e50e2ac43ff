import type { DriverListener, LeaseRef, StopListening } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import type { RedisConnection, Subscriber } from '../redis/connection.ts'
import { type RedlockNode, releaseRun } from '../redis/driver.ts'
import { inTime, storeErrorFrom, unlessForbidden } from '../redis/errors.ts'
import { FORCED_CHANNEL } from '../redis/keys.ts'
import { type SharedList, sharedRun } from '../redis/lists.ts'
import { barRun } from '../redis/proposals.ts'
import { runScript } from '../redis/scripts.ts'
import { tellForced } from '../redis/subscription.ts'
import { askNodes, type Quorum, quorumError } from './quorum.ts'

/**
 * Notifies the waiters of a Redlock that a lock was released, and passes on forced releases. The nodes have no queue,
 * so the message goes to every subscriber. Each node publishes it in the same step as the release. While there are
 * listeners, this client subscribes to at least a quorum.
 *
 * Waiters are woken when the message has arrived from a quorum of the nodes. Before that, a claim would be refused, and
 * would not ask again until its next poll. If it does not arrive from a quorum, because nodes are down or not
 * subscribed to, waiters are woken a little later.
 */
export class ReleaseBroadcast {
  readonly #voters: Quorum
  readonly #clock: Clock
  readonly #listeners = new Set<DriverListener>()
  #session: Promise<Session> | undefined
  /** The newest messages, each with the nodes from which it arrived. */
  readonly #received = new Map<string, Received>()

  constructor(voters: Quorum, clock: Clock) {
    this.#voters = voters
    this.#clock = clock
  }

  async listen(listener: DriverListener): Promise<StopListening> {
    this.#session ??= this.#start()
    const session = this.#session
    try {
      if ((await session).over) throw new StoreError('the subscription ended while it was opened')
    } catch (error) {
      // There may be the next one by now.
      if (this.#session === session) this.#session = undefined
      throw error
    }
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

  async #start(): Promise<Session> {
    const session: Session = { subscribers: new Set(), timers: new Set(), over: false }
    const { nodes, quorum } = this.#voters
    const [failure] = await askNodes<true, StoreError | false>(this.#voters, {
      entries: 1,
      call: (node) => this.#subscribe(session, node).then(() => [true]),
      decide: ({ answers, errors }) => {
        if (answers.length >= quorum) return false
        return errors.length > nodes.length - quorum ? quorumError(this.#voters, 'listen', errors) : undefined
      },
    })
    if (!failure) return session
    endAll(session)
    throw failure
  }

  /** Rejects if it fails. Another attempt is scheduled all the same. */
  async #subscribe(session: Session, driver: RedlockNode): Promise<void> {
    const attempt: Attempt = { subscriber: undefined, over: false }
    try {
      const open = (): Promise<void> => this.#open(session, driver, attempt)
      await inTime('subscribe', this.#voters.timeoutMs, open, driver.connection)
    } catch (error) {
      attempt.over = true
      attempt.subscriber?.end()
      this.#subscribeLater(session, driver)
      throw error
    }
  }

  async #open(session: Session, driver: RedlockNode, attempt: Attempt): Promise<void> {
    const [node] = await driver.connection.nodes()
    if (node === undefined) throw new StoreError('the node cannot be reached')
    const subscriber = await node.subscriber({
      message: (channel, text) =>
        channel === CHANNEL ? this.#message(driver, text) : tellForced(text, this.#listeners),
      closed: (cause) => {
        attempt.over = true
        // If the subscription is not open yet, opening it fails.
        if (attempt.subscriber === undefined || !session.subscribers.delete(attempt.subscriber)) return
        if (session.subscribers.size >= this.#voters.quorum) this.#subscribeLater(session, driver)
        else this.#lost(session, storeErrorFrom('listen', cause, driver.connection))
      },
    })
    attempt.subscriber = subscriber
    await Promise.all([
      subscriber.subscribe(CHANNEL, false),
      subscriber.subscribe(FORCED_CHANNEL, false).catch(unlessForbidden),
    ])
    // It timed out, its connection was lost, or there is no listener any more.
    if (attempt.over || session.over) {
      subscriber.end()
      throw new StoreError('the subscription ended while it was opened')
    }
    session.subscribers.add(subscriber)
  }

  /** While the other nodes are a quorum, nothing else would subscribe to this one again. */
  #subscribeLater(session: Session, driver: RedlockNode): void {
    if (session.over) return
    const timer = this.#clock.setTimer(() => {
      session.timers.delete(timer)
      this.#subscribe(session, driver).catch(() => {}) // It schedules another attempt itself.
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
    if (from.size !== this.#voters.quorum) return
    timer.cancel()
    this.#wake(lockName)
  }

  #receiveFirst(text: string, lockName: string): Received {
    const timer = this.#clock.setTimer(() => this.#wake(lockName), PATIENCE_MS)
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
    for (const listener of [...this.#listeners]) listener.wake({ lockName })
  }
}

/**
 * A release with its messages. `id` is new with each call: a repeated release wakes waiters again. `unpublished` is
 * called for each node that refuses to publish. `barMs`: for how long no node may repair the leases.
 */
export function publishedRelease(
  requests: readonly LeaseRef[],
  id: string,
  unpublished: (connection: RedisConnection) => void,
  barMs: number | undefined,
): SharedList<LeaseRef, boolean> {
  const runOf = sharedRun(requests, (prefix, leases) =>
    releaseRun(prefix, undefined, leases, { channel: CHANNEL, text: messagesOf(leases, id) }, unpublished),
  )
  return {
    requests,
    send({ connection, prefix }, leases) {
      const release = () => runScript(connection, runOf(prefix, leases))
      if (barMs === undefined) return release()
      return runScript(connection, barRun(prefix, leases, barMs)).then(release)
    },
  }
}

/** Publishes on one node that these leases were ended. Call it after that: a holder that asks earlier has its lease. */
export async function publishForced(node: RedlockNode, leases: readonly LeaseRef[], by: string): Promise<unknown[]> {
  const messages: Promise<unknown>[] = []
  for (let at = 0; at < leases.length; at += MAX_IDS) {
    const text = JSON.stringify({ lost: leases.slice(at, at + MAX_IDS).map(({ claimId }) => claimId), by })
    messages.push(node.connection.command(FORCED_CHANNEL, ['PUBLISH', FORCED_CHANNEL, text]))
  }
  return Promise.all(messages)
}

const MAX_IDS = 100

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

/** One in each line. A lease that is released under several tokens, one after the other, has one message. */
function messagesOf(leases: readonly LeaseRef[], id: string): string {
  const lines = leases.map(({ lockName, claimId }) => JSON.stringify([lockName, claimId, id]))
  return lines.filter((line, at) => line !== lines[at - 1]).join('\n')
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

interface Received {
  readonly from: Set<RedlockNode>
  /** Wakes the waiters if the message does not arrive from a quorum. */
  readonly timer: Timer
}

const CHANNEL = 'holdfast:released'
const SUBSCRIBE_AGAIN_MS = 1_000
const MAX_REMEMBERED = 1_000
/** A name, a claim's id and the id of the call, with every character escaped, are shorter. They are kept. */
const MAX_MESSAGE = 4_096
/**
 * How long to wait for the message from a quorum. A claim that asks earlier is refused. If a node is further away than
 * this, a hand-off takes one more request.
 */
const PATIENCE_MS = 150
