import type { LeaderElection, Lease, LockResult } from 'holdfast'
import { nowMs } from '../history.ts'
import type { Client } from './client.ts'
import { CALL_MS, FREE_FOR_MS, SLACK_MS, seconds, TTL_MS, WAIT_MS } from './settings.ts'
import type { Granted, Watch } from './watch.ts'

/** How a step of a scene claims a lock. */
export interface Ask {
  readonly name: string
  readonly ttlMs?: number
  readonly waits?: boolean
  /** No other client claims this name. */
  readonly isAlone?: boolean
  readonly heartbeat?: boolean
  readonly signal?: AbortSignal
}

/**
 * The steps that scenes are made of. A step may fail, because of the fault: the scene then goes on as an application
 * would. A step that does not settle in time, or fails with an unexpected error, is a violation.
 */
export class Play {
  /** The lock names of this run. */
  readonly names: readonly string[]
  readonly watch: Watch
  readonly #hurt: ReadonlySet<string>
  readonly #granted: (granted: Granted) => void

  /** `hurt` are the clients whose messages are hit by faults. */
  constructor(
    { names, watch, hurt }: { names: readonly string[]; watch: Watch; hurt: ReadonlySet<string> },
    granted: (granted: Granted) => void,
  ) {
    this.names = names
    this.watch = watch
    this.#hurt = hurt
    this.#granted = granted
  }

  isHurt(client: Client): boolean {
    return this.#hurt.has(client.id)
  }

  acquire(client: Client, ask: Ask): Promise<Lease | undefined> {
    return this.#claim(client, ask, () => client.lock.acquire(ask.name, optionsOf(ask)))
  }

  read(client: Client, ask: Ask): Promise<Lease | undefined> {
    const limit = Number.POSITIVE_INFINITY
    return this.#claim(client, ask, () => client.readers().acquireRead(ask.name, optionsOf(ask)), { limit })
  }

  permit(client: Client, limit: number, ask: Ask): Promise<Lease | undefined> {
    return this.#claim(client, ask, () => client.semaphore(limit).acquire(ask.name, optionsOf(ask)), { limit })
  }

  /** Holds both names for a moment. */
  async withLocks(client: Client, names: readonly string[], forMs: number): Promise<void> {
    const askedAt = nowMs()
    const run = async (leases: Lease[]): Promise<void> => {
      for (const lease of leases) this.#grant({ client: client.id, name: lease.lockName, lease, askedAt })
      await pause(forMs)
      for (const lease of leases) this.watch.ended(lease)
    }
    const options = optionsOf({ name: '', waits: true, heartbeat: true })
    await this.settles(`${client.id} withLocks`, WAIT_MS * 2, () => client.lock.withLocks(names, run, options))
  }

  async campaign(client: Client, election: LeaderElection, name: string) {
    const askedAt = nowMs()
    const options = { blockingTimeoutSeconds: seconds(WAIT_MS), value: client.id }
    const withValue = client.driver.capabilities.metadata ? options : { blockingTimeoutSeconds: seconds(WAIT_MS) }
    const term = await this.settles(`${client.id} campaign`, WAIT_MS, () => election.campaign(withValue))
    if (term !== undefined) this.#grant({ client: client.id, name, lease: term, askedAt })
    return term
  }

  async release(client: Client, lease: Lease | undefined): Promise<boolean | undefined> {
    if (lease === undefined) return undefined
    const isRelied = this.watch.isRelied(lease)
    this.watch.ended(lease)
    const releasing = this.settles(`${client.id} release`, CALL_MS * 2, () => lease.release())
    if (lease.held) this.watch.violation(`${client.id} still holds ${lease.lockName} in the step of its release`)
    const released = await releasing
    // The first copy of a release may have ended it, if a fault hits this client. And a busy machine may be too late.
    if (released === false && isRelied && !this.isHurt(client)) {
      this.watch.late(`the store no longer had the lease of ${client.id} on ${lease.lockName} when it was released`)
    }
    return released
  }

  extend(client: Client, lease: Lease | undefined): Promise<boolean | undefined> {
    if (lease === undefined) return Promise.resolve(undefined)
    return this.settles(`${client.id} extend`, CALL_MS * 2, () => lease.extend(seconds(TTL_MS)))
  }

  /** The lease was ended in the store. Its holder finds out with its next renewal, or when it cannot renew. */
  async loses(client: Client, lease: Lease | undefined): Promise<void> {
    const deadline = nowMs() + TTL_MS + SLACK_MS
    while (lease?.held && nowMs() < deadline) await pause(20)
    if (lease?.held) this.watch.late(`${client.id} still holds ${lease.lockName}, which was taken from it`)
  }

  /** Returns undefined if the call failed, or did not settle. */
  async settles<T>(what: string, boundMs: number, call: () => Promise<T>): Promise<T | undefined> {
    let timer: NodeJS.Timeout | undefined
    const isStuck = new Promise<undefined>((resolve) => {
      timer = setTimeout(() => {
        this.watch.late(`${what} did not settle within ${boundMs} + ${SLACK_MS} ms`)
        resolve(undefined)
      }, boundMs + SLACK_MS)
    })
    try {
      return await Promise.race([call(), isStuck])
    } catch (error) {
      const { code } = error as { code?: unknown }
      if (typeof code !== 'string' || !EXPECTED.has(code)) {
        this.watch.violation(`${what} failed with ${error instanceof Error ? (error.stack ?? error) : String(error)}`)
      }
      return undefined
    } finally {
      clearTimeout(timer)
    }
  }

  async #claim(
    client: Client,
    ask: Ask,
    call: () => Promise<LockResult>,
    shared?: { limit: number },
  ): Promise<Lease | undefined> {
    const askedAt = nowMs()
    const result = await this.settles(`${client.id} acquire`, ask.waits ? WAIT_MS + CALL_MS * 2 : CALL_MS * 2, call)
    if (result?.acquired === false && ask.isAlone) this.watch.violation(`${client.id} was locked out by itself`)
    if (result?.acquired === false && ask.waits) {
      const freeForMs = nowMs() - Math.max(askedAt, this.watch.lastHeldAt(ask.name))
      if (freeForMs > FREE_FOR_MS) {
        this.watch.late(`${client.id} was refused ${ask.name}, which was free for ${Math.round(freeForMs)} ms`)
      }
    }
    if (!result?.acquired) return undefined
    const { lock: lease } = result
    this.#grant({ client: client.id, name: ask.name, lease, askedAt, ...(shared && { shared }) })
    return lease
  }

  #grant(granted: Granted): void {
    this.watch.granted(granted)
    this.#granted(granted)
  }
}

const EXPECTED = new Set(['STORE_UNAVAILABLE', 'LEASE_LOST', 'NOT_ACQUIRED', 'NOT_HELD', 'ABORTED'])

const optionsOf = ({ ttlMs = TTL_MS, waits = false, heartbeat = false, signal }: Ask) => ({
  timeoutSeconds: seconds(ttlMs),
  heartbeat,
  ...(waits ? { blockingTimeoutSeconds: seconds(WAIT_MS) } : { blocking: false }),
  ...(signal && { signal }),
})

export const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
