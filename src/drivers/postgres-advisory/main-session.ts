import { ClosedError } from '../../core/errors.ts'
import { storeErrorFrom } from '../postgres/errors.ts'
import type { SessionLease } from './held-locks.ts'
import type { Session } from './session.ts'
import type { LockRequest } from './statements.ts'

/**
 * The connection that has the locks that were free when they were requested. It is opened when it is first needed, and
 * again after it was lost.
 */
export class MainSession {
  readonly #open: () => Promise<Session>
  #opening: Promise<Session> | undefined
  #session: Session | undefined
  #closed = false

  constructor(open: () => Promise<Session>) {
    this.#open = open
  }

  /** The session, if it is open. */
  get current(): Session | undefined {
    return this.#session?.lost === undefined ? this.#session : undefined
  }

  async get(): Promise<Session> {
    for (;;) {
      if (this.current !== undefined) return this.current
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

  /**
   * Requests locks without waiting. Returns one answer each, in order. A statement can have a key only once, so
   * requests for the same key go into several rounds.
   */
  async try(requests: readonly LockRequest[]): Promise<(SessionLease | undefined)[]> {
    const answers: (SessionLease | undefined)[] = requests.map(() => undefined)
    let left = requests.map((request, index) => ({ request, index }))
    while (left.length > 0) {
      const session = await this.get()
      const round = new Map<string, (typeof left)[number]>()
      const later: typeof left = []
      for (const each of left) {
        const { request, index } = each
        const own = session.leases.get(request.claimId)
        if (own !== undefined) answers[index] = own
        else if (round.has(request.key)) later.push(each)
        // The server grants a session the same lock any number of times. So exclusion within it is decided here.
        else if (!session.excludes(request)) round.set(request.key, each)
      }
      const tried = [...round.values()]
      const leases = await session.try(tried.map(({ request }) => request))
      tried.forEach(({ index }, position) => {
        answers[index] = leases[position]
      })
      left = later
    }
    return answers
  }

  async close(): Promise<void> {
    this.#closed = true
    // One that failed to open needs no closing.
    const session = this.#session ?? (await this.#opening?.catch(() => undefined))
    await session?.end().catch(() => {}) // It is not used any more, even if closing fails.
  }
}
