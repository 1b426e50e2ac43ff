import type { LeaseRef, LossListener, StopListening } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import { MAX_HOLDER_ID_LENGTH } from '../../core/limits.ts'
import type { RedlockNode } from '../redis/driver.ts'
import { readTheft } from '../redis/format.ts'
import { STOLEN_CHANNEL } from '../redis/keys.ts'
import { NodeChannel, type NodeChannelParts } from './node-channel.ts'

/**
 * Tells the holders of a Redlock that a lease was ended by force. It has a channel of its own: a process that only
 * holds leases must not get a message for every release of every lock.
 */
export class Thefts {
  readonly #channel: NodeChannel<LossListener>

  constructor(parts: Pick<NodeChannelParts, 'nodes' | 'quorum' | 'clock'>) {
    this.#channel = new NodeChannel({
      ...parts,
      channel: STOLEN_CHANNEL,
      message: (_node, text) => this.#message(text),
    })
  }

  listen(listener: LossListener, timeoutMs: number): Promise<StopListening> {
    return this.#channel.listen(listener, timeoutMs)
  }

  end(): void {
    this.#channel.end()
  }

  /** The first message is enough. It is only a hint, and core asks the nodes. */
  #message(text: string): void {
    const { lost = [], by = '' } = readTheft(text) ?? {}
    const cause = new StoreError(`it was stolen by ${by.slice(0, MAX_HOLDER_ID_LENGTH)}`)
    for (const claimId of lost) {
      for (const listener of [...this.#channel.listeners]) listener.lost(claimId, cause)
    }
  }
}

/** Publishes on one node that these leases were ended. Call it after that: a holder that asks earlier has its lease. */
export async function publishTheft(node: RedlockNode, leases: readonly LeaseRef[], by: string): Promise<unknown[]> {
  const messages: Promise<unknown>[] = []
  for (let at = 0; at < leases.length; at += MAX_IDS) {
    const text = JSON.stringify({ lost: leases.slice(at, at + MAX_IDS).map(({ claimId }) => claimId), by })
    messages.push(node.connection.command(STOLEN_CHANNEL, ['PUBLISH', STOLEN_CHANNEL, text]))
  }
  return Promise.all(messages)
}

const MAX_IDS = 100
