import type { DriverListener, LeaseRef, StopListening } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import type { Clock, Timer } from '../../core/time/clock.ts'
import type { RedlockNode } from '../redis/driver.ts'
import { releaseArgs } from '../redis/format.ts'
import { COUNTER } from '../redis/keys.ts'
import { leasesCall } from '../redis/send-batch.ts'
import { SharedCall } from '../redis/shared-call.ts'
import { NodeChannel } from './node-channel.ts'

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
  readonly #channel: NodeChannel<DriverListener>
  /** The newest messages, each with the nodes from which it arrived. */
  readonly #received = new Map<string, Received>()

  constructor(parts: ReleaseBroadcastParts) {
    this.#parts = parts
    this.#channel = new NodeChannel({ ...parts, channel: CHANNEL, message: (...message) => this.#message(...message) })
  }

  listen(listener: DriverListener, timeoutMs: number): Promise<StopListening> {
    return this.#channel.listen(listener, timeoutMs)
  }

  end(): void {
    this.#channel.end()
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
    for (const listener of [...this.#channel.listeners]) listener.wake(lockName)
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

const CHANNEL = 'holdfast:released'
const MAX_REMEMBERED = 1_000
/** A name, a claim's id and the id of the call, with every character escaped, are shorter. They are kept. */
const MAX_MESSAGE = 4_096
/**
 * How long to wait for the message from a quorum. A claim that asks earlier is refused. If a node is further away than
 * this, a hand-off takes one more request.
 */
const PATIENCE_MS = 150
