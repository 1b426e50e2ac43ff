import type { DriverListener, StopListening } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import type { Subscriber } from '../redis/connection.ts'
import type { RedisDriver, ReleaseTelling } from '../redis/driver.ts'
import { inTime, storeErrorFrom } from '../redis/errors.ts'

export interface ReleaseNewsParts {
  readonly nodes: readonly RedisDriver[]
  readonly quorum: number
  readonly clock: Clock
}

/**
 * Tells waiters of a Redlock that a lock was given back. Nobody queues on the nodes, so the message goes to everybody
 * who listens. Every node publishes it in the same step as the release, and it is listened to on a quorum at least.
 *
 * Waiters are woken when the message has come through a quorum of the nodes: before that, asking is refused, and they
 * would not ask again until their next poll. Where it does not come through so many, because nodes are down or not
 * listened to, they are woken a little later.
 */
export class ReleaseNews {
  readonly #parts: ReleaseNewsParts
  readonly #listeners = new Set<DriverListener>()
  /** The newest messages, each with the nodes that it came through. */
  readonly #heard = new Map<string, Heard>()
  #session: Promise<Session> | undefined

  constructor(parts: ReleaseNewsParts) {
    this.#parts = parts
  }

  /** What every node tells of one release. `id` is new each time: one that is sent again is news again. */
  telling(id: string): Omit<ReleaseTelling, 'failed'> {
    return { channel: CHANNEL, messageOf: ({ lockName, claimId }) => JSON.stringify([lockName, claimId, id]) }
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
    session?.then(endAll, () => {}) // What could not be opened need not be closed; whoever asked for it was told.
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

  /** Rejects if that fails; it is tried again all the same. */
  async #subscribe(session: Session, driver: RedisDriver, timeoutMs: number): Promise<void> {
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

  async #open(session: Session, driver: RedisDriver, attempt: Attempt, timeoutMs: number): Promise<void> {
    const [node] = await driver.connection.nodes()
    if (node === undefined) throw new StoreError('the node cannot be reached')
    const subscriber = await node.subscriber({
      message: (_channel, text) => this.#told(driver, text),
      closed: (cause) => {
        attempt.over = true
        // Before it was open, the opening itself fails.
        if (attempt.subscriber === undefined || !session.subscribers.delete(attempt.subscriber)) return
        if (session.subscribers.size < this.#parts.quorum)
          this.#lost(session, storeErrorFrom('listen', cause, driver.connection))
        else this.#subscribeLater(session, driver, timeoutMs)
      },
    })
    attempt.subscriber = subscriber
    await subscriber.subscribe(CHANNEL, false)
    // It took too long, its connection was lost, or nobody listens any more.
    if (attempt.over || session.over) {
      subscriber.end()
      throw new StoreError('the subscription ended while it was opened')
    }
    session.subscribers.add(subscriber)
  }

  /** While the others are enough, nothing else would bring this one back. */
  #subscribeLater(session: Session, driver: RedisDriver, timeoutMs: number): void {
    if (session.over) return
    const timer = this.#parts.clock.setTimer(() => {
      session.timers.delete(timer)
      this.#subscribe(session, driver, timeoutMs).catch(() => {}) // it is tried again
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

  #told(node: RedisDriver, text: string): void {
    const lockName = lockNameIn(text)
    if (lockName === undefined) return
    const { through, timer } = this.#heard.get(text) ?? this.#hearFirst(text, lockName)
    if (through.has(node)) return
    through.add(node)
    if (through.size !== this.#parts.quorum) return
    timer.cancel()
    this.#wake(lockName)
  }

  #hearFirst(text: string, lockName: string): Heard {
    const timer = this.#parts.clock.setTimer(() => this.#wake(lockName), PATIENCE_MS)
    const heard = { through: new Set<RedisDriver>(), timer }
    this.#heard.set(text, heard)
    const [oldest] = this.#heard.keys()
    if (this.#heard.size > REMEMBERED && oldest !== undefined) this.#heard.delete(oldest)
    return heard
  }

  #wake(lockName: string): void {
    for (const listener of [...this.#listeners]) listener.wake(lockName)
  }
}

/** Anybody may publish on the channel: undefined for what is not ours. */
function lockNameIn(text: string): string | undefined {
  try {
    const parts: unknown = JSON.parse(text)
    return Array.isArray(parts) && typeof parts[0] === 'string' ? parts[0] : undefined
  } catch {
    return undefined
  }
}

interface Heard {
  readonly through: Set<RedisDriver>
  /** Wakes those who wait, if the message does not come through a quorum. */
  readonly timer: Timer
}

interface Session {
  readonly subscribers: Set<Subscriber>
  /** Of the nodes that are not listened to. */
  readonly timers: Set<Timer>
  over: boolean
}

/** To listen at one node. */
interface Attempt {
  subscriber: Subscriber | undefined
  over: boolean
}

function endAll(session: Session): void {
  session.over = true
  for (const timer of session.timers) timer.cancel()
  for (const subscriber of session.subscribers) subscriber.end()
}

/** Resolves when so many have; rejects when so many cannot any more. */
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
const REMEMBERED = 1_000
const SUBSCRIBE_AGAIN_MS = 1_000
/**
 * How long to wait for the message to come through a quorum. Asking earlier than that is refused; a node that is this
 * far away makes a hand-off one ask longer.
 */
const PATIENCE_MS = 150
