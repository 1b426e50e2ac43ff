/** What the tasks of a client have done so far. */
export interface Done {
  /** Leases that are held now, as far as the tasks know. */
  leases: number
  /** Claims that wait or ask now. */
  pending: number
  grants: number
  grantsByKind: Record<string, number>
  refused: number
  /** How leases ended: released, expired, lost although they had a heartbeat, abandoned to `close`. */
  ends: Record<string, number>
  extended: number
  rateSteps: number
  /** Instances that were opened and closed. */
  instances: number
  /** Errors by code. */
  errors: Record<string, number>
  /** Errors that no caller should see here, and warnings of Node. */
  unexpected: string[]
}

/** A cut connection, an abort, contention, and the end of an instance explain these. */
const EXPECTED = ['STORE_UNAVAILABLE', 'ABORTED', 'NOT_ACQUIRED', 'CLOSED', 'LEASE_LOST', 'RATE_LIMITED']
/** Enough to see what it is. */
const MOST_UNEXPECTED = 20

/** The error that the function of a `withLock` throws on purpose. */
export class PlannedError extends Error {
  readonly code = 'PLANNED'
}

export class Tally {
  readonly done: Done = {
    leases: 0,
    pending: 0,
    grants: 0,
    grantsByKind: {},
    refused: 0,
    ends: {},
    extended: 0,
    rateSteps: 0,
    instances: 0,
    errors: {},
    unexpected: [],
  }

  granted(kind: string): void {
    this.done.grants += 1
    this.done.leases += 1
    this.done.grantsByKind[kind] = (this.done.grantsByKind[kind] ?? 0) + 1
  }

  ended(how: 'released' | 'expired' | 'lost' | 'abandoned'): void {
    this.done.leases -= 1
    this.done.ends[how] = (this.done.ends[how] ?? 0) + 1
  }

  /** Counts the claim as pending until it has its answer. */
  async asking<T>(claim: () => Promise<T>): Promise<T> {
    this.done.pending += 1
    try {
      return await claim()
    } finally {
      this.done.pending -= 1
    }
  }

  /** Returns undefined if it fails. */
  async attempt<T>(where: string, work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work()
    } catch (error) {
      this.failed(where, error)
      return undefined
    }
  }

  failed(where: string, error: unknown): void {
    const { code, name, message } = (error ?? {}) as { code?: unknown; name?: unknown; message?: unknown }
    const known = typeof code === 'string' ? code : 'none'
    this.done.errors[known] = (this.done.errors[known] ?? 0) + 1
    if (error instanceof PlannedError || EXPECTED.includes(known)) return
    this.unexpected(`${where}: ${name}: ${message}`)
  }

  unexpected(text: string): void {
    if (this.done.unexpected.length < MOST_UNEXPECTED) this.done.unexpected.push(text)
  }
}
