/** A model of a lock of the Redis driver, without a store. test/drivers/redis/histories.test.ts compares with it. */
export class LockModel {
  leases: ModelLease[] = []
  waiters: ModelWaiter[] = []
  /** For each client, whether it is subscribed, so that the server can notify it. */
  readonly #listening: readonly boolean[]

  constructor(listening: readonly boolean[]) {
    this.#listening = listening
  }

  /** Whether the claim is granted, and its place in the queue if it waits. */
  acquire(terms: ModelTerms, { waits, forces, client }: Asking): { granted: boolean; ahead?: number } {
    if (this.leases.some(({ id }) => id === terms.id)) return { granted: true }
    if (forces) {
      this.#dropWaiter(terms.id)
      this.leases = [terms]
      return { granted: true }
    }
    if (!waits) this.#dropWaiter(terms.id)
    const place = this.waiters.find(({ id }) => id === terms.id)
    const hears = this.#listening[client] === true
    if (place !== undefined) Object.assign(place, { client, hears })
    this.#advance(terms.id)
    if (this.leases.some(({ id }) => id === terms.id)) return { granted: true }
    if (this.waiters.length === 0 && this.#fits(terms)) {
      this.leases.push(terms)
      return { granted: true }
    }
    if (!waits) return { granted: false }
    if (place === undefined) this.waiters.push({ ...terms, client, hears })
    return { granted: false, ahead: this.waiters.findIndex(({ id }) => id === terms.id) }
  }

  renew(id: string): boolean {
    if (this.leases.some((lease) => lease.id === id)) return true
    this.#advance()
    return false
  }

  release(id: string): boolean {
    const held = this.leases.some((lease) => lease.id === id)
    this.leases = this.leases.filter((lease) => lease.id !== id)
    if (!held) this.#dropWaiter(id)
    this.#advance()
    return held
  }

  /** First come, first served. Waiters that are known to be gone are skipped. */
  #advance(asking?: string): void {
    for (let first = this.waiters[0]; first !== undefined && this.#fits(first); first = this.waiters[0]) {
      this.waiters.shift()
      if (first.id === asking || !first.hears || this.#listening[first.client]) this.leases.push(termsOf(first))
      if (first.id === asking) return
    }
  }

  #fits({ exclusive, limit, permits }: ModelTerms): boolean {
    if (exclusive) return this.leases.length === 0
    if (this.leases.some((lease) => lease.exclusive)) return false
    return limit === 0 || this.leases.reduce((out, lease) => out + lease.permits, permits) <= limit
  }

  #dropWaiter(id: string): void {
    this.waiters = this.waiters.filter((waiter) => waiter.id !== id)
  }
}

export interface ModelTerms {
  readonly id: string
  readonly exclusive: boolean
  /** 0 if the lock is free. */
  readonly limit: number
  readonly permits: number
}

export interface Asking {
  readonly waits: boolean
  readonly forces: boolean
  readonly client: number
}

type ModelLease = ModelTerms
type ModelWaiter = ModelTerms & { readonly client: number; readonly hears: boolean }

const termsOf = ({ id, exclusive, limit, permits }: ModelTerms): ModelTerms => ({ id, exclusive, limit, permits })
