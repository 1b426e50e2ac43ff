import type { LeaseRef } from '../../core/driver.ts'
import { ClosedError } from '../../core/errors.ts'
import { storeErrorFrom } from '../postgres/errors.ts'
import type { Asking, Session, SessionLease } from './session.ts'

/**
 * The one connection that carries the locks that were free when asked for, opened when first needed and anew when it
 * was lost.
 */
export class MainSession {
  readonly #open: () => Promise<Session>
  #opening: Promise<Session> | undefined
  #session: Session | undefined
  #closed = false

  constructor(open: () => Promise<Session>) {
    this.#open = open
  }

  /** As it is at this moment. */
  get now(): Session | undefined {
    return this.#session?.lost === undefined ? this.#session : undefined
  }

  async get(): Promise<Session> {
    for (;;) {
      if (this.now !== undefined) return this.now
      if (this.#closed) throw new ClosedError('the postgres-advisory driver is closed')
      this.#opening ??= this.#open()
      const opening = this.#opening
      try {
        this.#session = await opening
      } catch (error) {
        throw storeErrorFrom(error)
      } finally {
        if (this.#opening === opening) this.#opening = undefined
      }
    }
  }

  /** Those that have no lease yet, in rounds of distinct keys: one answer each, in order. */
  async try(
    claims: readonly { readonly claim: LeaseRef; readonly asking: Asking }[],
  ): Promise<(SessionLease | undefined)[]> {
    const answers: (SessionLease | undefined)[] = claims.map(() => undefined)
    let left = claims.map((each, index) => ({ ...each, index }))
    while (left.length > 0) {
      const session = await this.get()
      const round = new Map<string, (typeof left)[number]>()
      const later: typeof left = []
      for (const each of left) {
        const { asking, claim, index } = each
        const own = session.leases.get(claim.claimId)
        if (own !== undefined) answers[index] = own
        else if (round.has(asking.key)) later.push(each)
        // The server lets one session have one lock any number of times. Who excludes whom within it is decided here.
        else if (!session.excludes(asking)) round.set(asking.key, each)
      }
      const tried = [...round.values()]
      const got = await session.try(tried.map(({ asking }) => asking))
      tried.forEach(({ index }, place) => {
        answers[index] = got[place]
      })
      left = later
    }
    return answers
  }

  async close(): Promise<void> {
    this.#closed = true
    // One that could not be opened need not be closed.
    const session = this.#session ?? (await this.#opening?.catch(() => undefined))
    await session?.end().catch(() => {}) // Ended it is, whatever the socket says of it.
  }
}
