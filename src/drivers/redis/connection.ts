import { CALL_TIMEOUT_MS } from '../../core/limits.ts'
import { withTimeout } from '../../core/time/abort.ts'
import { type Clock, systemClock } from '../../core/time/clock.ts'
import { isReadOnly } from './errors.ts'

/** What the driver needs of a client, for every client library. */
export interface RedisConnection {
  readonly cluster: boolean
  /** The server, as errors name it: a URL without user name and password. */
  readonly place: string
  /**
   * Returns the reason why a command could not be sent, for clients whose own error does not say it. Absent for the
   * others.
   */
  failureBehind?(error: unknown): unknown
  /** Sends a command to the node that has `key`. Rejects with the client's own error. */
  command(key: string, args: readonly string[]): Promise<unknown>
  /**
   * Sends commands as one pipeline over one connection. Rejects if one of them fails, or if the connection ends after
   * some of them: the rest is never sent alone over another connection. Absent on a Cluster.
   */
  together?(commands: readonly (readonly string[])[]): Promise<readonly unknown[]>
  /**
   * Call it before a command and again, with `isFresh`, after the answer. If the two differ, the client may have sent
   * the command twice: its connection was lost meanwhile, and the answer may be that to the second copy. Absent for
   * clients that never send a command again by themselves.
   */
  session?(isFresh: boolean): unknown
  /**
   * Makes the client ask for the masters again, after it has sent a command to a replica. Resolves also if it does not
   * find them. Absent for clients that never do so.
   */
  findMasters?(): Promise<void>
  /** Absent for clients that find a new master by themselves. */
  readonly master?: MasterWatch
  /** The masters: one, or on a Cluster one for each shard. */
  nodes(): Promise<readonly RedisNode[]>
  /**
   * The id of the master that has this slot, as far as the client knows. Absent for a single server.
   */
  masterOf?(slot: number): string | undefined
  /**
   * The master that has this slot now. It reads a key of the slot first, because a client learns only from the answer
   * to a command that a slot has moved.
   */
  nodeOfSlot(slot: number): Promise<RedisNode>
}

export interface RedisNode {
  /** Stays the same as long as the address of the node. */
  readonly id: string
  command(args: readonly string[]): Promise<unknown>
  /** Opens a separate connection to this node. `closed` is called once, if it ends by itself. */
  subscriber(events: SubscriberEvents): Promise<Subscriber>
}

export interface SubscriberEvents {
  message(channel: string, text: string): void
  closed(cause: Error): void
}

export interface Subscriber {
  /** Resolves when the server has confirmed it. */
  subscribe(channel: string, sharded: boolean): Promise<void>
  /** Closes the connection at once. Never throws. */
  end(): void
}

/**
 * Ends a connection that is not open in time. A server that hangs accepts connections, and the client libraries wait
 * for the answers to their first commands without a limit. Without this, each attempt to subscribe would leave one
 * behind.
 */
export async function connected(opening: Promise<unknown>, end: () => void): Promise<void> {
  const late = (): Error => new Error(`the server did not answer a new connection within ${CALL_TIMEOUT_MS} ms`)
  try {
    await withTimeout(systemClock, CALL_TIMEOUT_MS, opening, late)
  } catch (error) {
    end()
    throw error
  }
}

/**
 * Behind one address, a master can be demoted and keep its connections open. Every write over them fails as long as the
 * client stays connected, although a new connection would reach the new master. So the client is made to reconnect when
 * a server refuses writes that has run a write command before. A server that never did was a replica from the start.
 */
export class MasterWatch {
  readonly #reconnect: () => void
  readonly #mayBePromoted: boolean
  readonly #clock: Clock
  readonly #listeners = new Set<() => void>()
  /** `new`: the server has run no write command. `refuses`: it did, and refuses them now. */
  state: 'new' | 'writes' | 'refuses' = 'new'
  #nextTryMs = Number.NEGATIVE_INFINITY

  constructor(reconnect: () => void, { mayBePromoted = false, clock = systemClock }: MasterWatchOptions = {}) {
    this.#reconnect = reconnect
    this.#mayBePromoted = mayBePromoted
    this.#clock = clock
  }

  /**
   * The server never ran a write command: if it refuses writes, it was a replica from the start. False if the address
   * comes from Sentinel, which may be about to promote the server.
   */
  get neverWrote(): boolean {
    return this.state === 'new' && !this.#mayBePromoted
  }

  /** The server has run a write command, even if there was nothing to change. */
  wrote(): void {
    const before = this.state
    this.state = 'writes'
    if (before !== 'refuses') return
    for (const listener of [...this.#listeners]) listener()
  }

  failed(error: unknown): void {
    if (!isReadOnly(error)) return
    const { monotonicMs } = this.#clock.now()
    if (this.state !== 'new') this.state = 'refuses'
    // A client that has written nothing yet may have connected to the old master as well. More often, it was given the
    // address of a replica.
    else if (this.#nextTryMs < 0) this.#nextTryMs = monotonicMs + RECONNECT_EVERY_MS
    if (monotonicMs < this.#nextTryMs) return
    this.#nextTryMs = monotonicMs + RECONNECT_EVERY_MS
    this.#reconnect()
  }

  /** Called when writes succeed again, presumably on another server. Returns a function that removes the listener. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }
}

export interface MasterWatchOptions {
  /** The address comes from Sentinel. */
  readonly mayBePromoted?: boolean
  readonly clock?: Clock
}

/** While the address still leads to the demoted server, reconnecting with every call would only add load. */
const RECONNECT_EVERY_MS = 1_000
