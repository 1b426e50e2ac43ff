import { StoreError } from '../../core/errors.ts'
import { serverFacts } from './redis-checks.ts'
import type { RedisConnection } from './redis-connection.ts'
import type { VoteGuard } from './redis-scripts.ts'

/** Keeps a node that has just started from voting: it may have come up without leases that others still rely on. */
export class RestartWatch {
  readonly #graceMs: number

  constructor(graceMs: number) {
    this.#graceMs = graceMs
  }

  of(node: { readonly connection: RedisConnection }): VoteGuard {
    return { graceMs: this.#graceMs, mayVote: () => this.mayVote(node) }
  }

  /** Rejects while leases that the node may have forgotten could still be held. */
  async mayVote({ connection }: { readonly connection: RedisConnection }): Promise<void> {
    if (this.#graceMs === 0) return
    const [node] = await connection.nodes()
    if (node === undefined) throw new StoreError('the node cannot be reached')
    const { uptimeSeconds } = await serverFacts((args) => node.command(args))
    // Whole seconds, rounded down: so it waits up to a second longer than it must, never shorter.
    const leftMs = this.#graceMs - uptimeSeconds * 1_000
    if (leftMs <= 0) return
    throw new StoreError(
      `it started ${uptimeSeconds} s ago and does not vote for another ${Math.ceil(leftMs / 1_000)} s`,
    )
  }
}
