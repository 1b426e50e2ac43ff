import type { DriverListener, LeaseRef } from '../../core/driver.ts'
import { StoreError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { admitted } from '../shared/admission.ts'
import type { SqliteConnection } from './connection.ts'
import { storeErrorFrom } from './errors.ts'
import { ringBell, watchDatabase } from './file-watch.ts'
import { heldBeside, largestLimit, nextEndOf, QUEUE_WINDOWS, type Row, readNow, shareOf, waitersOf } from './rows.ts'

/**
 * Finds out which waiters of this driver should ask again and which leases were ended by force, and rings the bell when
 * it may be the turn of another process. A check only reads. A check that wrote would trigger the checks of other
 * processes, which would trigger this one again.
 */
export class SqliteWakeUps {
  readonly #connection: SqliteConnection
  readonly #clock: Clock
  readonly #listeners = new Set<DriverListener>()
  /** The claims of this driver that are in a queue, by lock name. */
  readonly #waiting = new Map<string, Set<string>>()
  /** The first waiter of each lock at the last notification, and the end of the lease that it waited for. */
  readonly #first = new Map<string, { claimId: string; nextEndMs: number }>()
  #version = 0
  /** The forced releases up to this id have been reported. */
  #lastForced = 0
  #newsIsDue = false
  #stopWatching: (() => void) | undefined

  constructor(connection: SqliteConnection, clock: Clock) {
    this.#connection = connection
    this.#clock = clock
    connection.onReopened = () => {
      // Another file counts from the beginning.
      this.#lastForced = 0
      this.#disconnected(
        new StoreError(`the lock file ${connection.path} was removed or replaced, and was opened again`),
      )
    }
  }

  add({ lockName, claimId }: LeaseRef): void {
    const waiting = this.#waiting.get(lockName) ?? new Set()
    this.#waiting.set(lockName, waiting.add(claimId))
  }

  remove({ lockName, claimId }: LeaseRef): void {
    const waiting = this.#waiting.get(lockName)
    if (waiting === undefined) return
    waiting.delete(claimId)
    if (waiting.size > 0) return
    this.#waiting.delete(lockName)
    this.#first.delete(lockName)
  }

  listen(listener: DriverListener): void {
    this.#listeners.add(listener)
    this.#version = this.#connection.dataVersion()
    this.#newsIsDue = true
    this.#stopWatching ??= watchDatabase(this.#connection.path, this.#clock, (how) =>
      how === 'rung' ? this.#check([...this.#waiting.keys()], 'turns') : this.#checkIfChanged(),
    )
  }

  stop(listener: DriverListener): void {
    this.#listeners.delete(listener)
    if (this.#listeners.size === 0) this.end()
  }

  end(): void {
    this.#stopWatching?.()
    this.#stopWatching = undefined
  }

  /** Call it after a commit of this connection. `turns`: it may be the turn of a waiter, here or elsewhere. */
  committed(requests: readonly LeaseRef[], { turns }: { turns: boolean }): void {
    if (turns) ringBell(this.#connection.path)
    if (this.#listeners.size === 0) return
    // The data version changes with commits of other connections, not with those of this one.
    this.#newsIsDue = true
    const lockNames = new Set(requests.map(({ lockName }) => lockName).filter((name) => this.#waiting.has(name)))
    this.#check([...lockNames], 'turns')
  }

  #checkIfChanged(): number {
    if (this.#waiting.size === 0) return 0
    try {
      this.#connection.assertCurrent()
      const version = this.#connection.dataVersion()
      if (version === this.#version && !this.#newsIsDue) return 0
      this.#version = version
      this.#newsIsDue = false
      this.#reportForced()
    } catch (error) {
      this.#disconnected(error)
      return 0
    }
    return this.#check([...this.#waiting.keys()], 'turns and news')
  }

  #reportForced(): void {
    const sinceMs = readNow(this.#connection) - RECENT_MS
    const rows = this.#connection.all('forced_releases_since', this.#lastForced, sinceMs) as Forced[]
    for (const { id, claim_id, forced_by: by } of rows) {
      this.#lastForced = id
      const cause = new StoreError(`it was force-released by ${by}`)
      for (const listener of [...this.#listeners]) listener.lost(claim_id, cause)
    }
  }

  /** Never throws: the transaction before it has been committed, and its answer must arrive. */
  #check(lockNames: readonly string[], what: 'turns' | 'turns and news'): number {
    if (lockNames.length === 0) return 0
    try {
      const nowMs = readNow(this.#connection)
      for (const lockName of lockNames) this.#wakeOn(lockName, nowMs, what)
    } catch (error) {
      this.#disconnected(error)
    }
    return lockNames.length
  }

  /** `news`, less urgent: another waiter is the first, or the lease that the first one waits for ends sooner. */
  #wakeOn(lockName: string, nowMs: number, what: 'turns' | 'turns and news'): void {
    const ours = this.#waiting.get(lockName)
    const [front, more] = QUEUE_WINDOWS
    let queue = waitersOf(this.#connection, lockName, nowMs, front)
    const [first] = queue
    // Behind an exclusive claim of another process no waiter of ours has its turn. Most checks end here.
    if (first === undefined || (first.mode === 'exclusive' && !ours?.has(first.claim_id))) {
      this.#first.delete(lockName)
      return
    }
    let woken = this.#admitted(lockName, nowMs, queue)
    if (woken.some(({ mode }) => mode === 'shared')) {
      queue = waitersOf(this.#connection, lockName, nowMs, more)
      woken = this.#admitted(lockName, nowMs, queue)
    }
    if (what === 'turns and news') {
      const before = this.#first.get(lockName)
      const nextEndMs = nextEndOf(this.#connection, lockName, nowMs) ?? Number.POSITIVE_INFINITY
      const news = before?.claimId !== first.claim_id || nextEndMs < before.nextEndMs
      if (woken.length === 0 && news) woken = [first]
      this.#first.set(lockName, { claimId: first.claim_id, nextEndMs })
    }
    for (const { claim_id: claimId } of woken) {
      if (!ours?.has(claimId)) continue
      for (const listener of this.#listeners) listener.wake({ claimId })
    }
  }

  #admitted(lockName: string, nowMs: number, queue: readonly Row[]): Row[] {
    const { held } = heldBeside(this.#connection, lockName, nowMs, largestLimit(queue.map(shareOf)))
    return admitted(held, queue, shareOf)
  }

  #disconnected(error: unknown): void {
    this.end()
    const cause = storeErrorFrom(error, this.#connection.path)
    const listeners = [...this.#listeners]
    this.#listeners.clear()
    for (const listener of listeners) listener.disconnected(cause)
  }
}

interface Forced {
  readonly id: number
  readonly claim_id: string
  readonly forced_by: string
}

/** The holders of leases that were ended earlier have asked since. */
const RECENT_MS = 10_000
