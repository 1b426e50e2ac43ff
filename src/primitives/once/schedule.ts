import type { ClaimRequest, Holder, Refused } from '../../core/claim/holder.ts'
import { AbortedError, ClosedError, isOutage, LeaseLostError } from '../../core/errors.ts'
import { LeaseUse } from '../../core/lease/lease-use.ts'
import { pause } from '../../core/time/abort.ts'
import { AFTER_OUTAGE, backoffMs } from '../../core/time/backoff.ts'
import type { Instance } from '../instance.ts'
import { assertKeepsResults } from './results.ts'
import type { OnceRun, Runs } from './runs.ts'
import { tickNames } from './tick.ts'

/** What happened to a tick. */
export type TickResult<T> =
  | { readonly ran: true; readonly result: T }
  | { readonly ran: false; readonly reason: 'elsewhere' | 'overlap' | 'missed' | 'closed' | 'aborted' }

export interface ScheduleOptions {
  readonly name: string
  /** The claim of a run, except for its lock name. */
  readonly request: ClaimRequest
  /** How long the record of a tick is kept. */
  readonly forMs: number
  readonly missed: 'skip' | 'last' | 'all'
  readonly overlap: boolean
}

/**
 * The ticks of one schedule in one instance.
 *
 * The calls ask the store one at a time, in the order in which they came. So after an outage there is one call that
 * asks, and those behind it: only the last of them runs, or all in order. A call leaves the queue with the store's
 * answer. With `missed: 'all'` it stays until it has ended.
 */
export class Schedule {
  readonly #instance: Instance
  readonly #runs: Runs
  readonly #options: ScheduleOptions
  /** The calls that the store has not answered. The first one asks. */
  readonly #queue: Call[] = []
  #newest: Call | undefined
  /** The last call that got the lock left it to a later one. That one keeps it, or a slow store would prevent all. */
  #hasYielded = false

  constructor(instance: Instance, runs: Runs, options: ScheduleOptions) {
    this.#instance = instance
    this.#runs = runs
    this.#options = options
  }

  async call<T>(tick: string, job: (run: OnceRun) => Promise<T> | T, isAwaited: () => boolean): Promise<TickResult<T>> {
    const { name, request, missed, overlap } = this.#options
    const names = tickNames(name, tick, overlap)
    const { chain } = this.#runs.reentry
    const claim = { ...request, lockName: names.run, metadata: { tick }, chain, isAwaited }
    const [first] = this.#queue
    // Only with `missed: 'all'` is the first one still here when the store has answered.
    if (first?.isAnswered && first.tick !== tick && !overlap) return skipped('overlap')
    const before = this.#queue.at(-1)
    const call = new Call(tick, before !== undefined)
    this.#newest = call
    this.#queue.push(call)
    let hasBegun = false
    try {
      await before?.left
      const turn = await this.#turn(call, claim, names.done)
      if ('ran' in turn) return turn
      const { holder } = turn
      await using lease = turn.lease
      if ((await this.#runs.insist(lease, () => this.#runs.find(holder, names.done))) !== undefined) {
        return skipped('elsewhere')
      }
      if (this.#yields(call)) return skipped('missed')
      // The lease may have ended meanwhile, by closing, by force or by time. Then another run may have begun.
      lease.assertHeld()
      hasBegun = true
      call.isAnswered = true
      if (missed !== 'all' || (overlap && !call.isLate)) this.#leave(call)
      // Nothing reads the result of a tick from the store, so it need not be JSON.
      const turnOf = { ...names, ...turn, forMs: this.#options.forMs, metadataOf: () => ({}) }
      return { ran: true, result: (await holder.running(this.#runs.run(turnOf, job))).own }
    } catch (error) {
      if (hasBegun) throw error
      return skipped(this.#reasonOf(error))
    } finally {
      // After the lease was released: the next call must not find its own instance in its way.
      this.#leave(call)
    }
  }

  /** Asks the store, and waits while the tick runs elsewhere. Resolves with a lease, or with why there is none. */
  async #turn(call: Call, claim: ClaimRequest, done: string): Promise<Skipped | Granted> {
    const { missed, forMs } = this.#options
    const untilMs = this.#runs.nowMs + claim.patienceMs
    for (let tries = 1; ; tries += 1) {
      if (this.#isSuperseded(call)) return skipped('missed')
      if (claim.signal?.aborted) throw new AbortedError(`waiting for "${claim.lockName}"`, claim.signal.reason)
      try {
        // Also while it waits for runs to end: a tick is new work.
        this.#instance.assertOpen()
        const holder = await this.#instance.openFor({ ...claim, patienceMs: 0 })
        assertKeepsResults(holder, forMs)
        const outcome = await holder.acquire({ ...claim, patienceMs: 0 }, (end) => end)
        if (outcome instanceof LeaseUse) return { holder, lease: outcome }
        this.#hasYielded = false
        const found = await this.#foundElsewhere(holder, call, outcome, done)
        if (found === 'unknown') {
          if (this.#runs.nowMs >= untilMs) return skipped('elsewhere')
          await pause(this.#instance.clock, this.#restMs(tries), claim.signal, this.#instance.closing)
          continue
        }
        if (found === 'done') return skipped('elsewhere')
        if (found === 'busy' && !(missed === 'all' && call.isLate)) return skipped('overlap')
        call.isAnswered = true
        if (missed !== 'all') this.#leave(call)
        const leftMs = Math.max(0, untilMs - this.#runs.nowMs)
        // A tick that is over frees the lock at once, or when its lease ends.
        const patienceMs = found === 'over' ? Math.max(leftMs, claim.ttlMs) : leftMs
        return await this.#wait(holder, { ...claim, patienceMs }, found === 'same' ? 'elsewhere' : 'overlap')
      } catch (error) {
        const restMs = this.#restMs(tries)
        if (!isOutage(error) || missed === 'skip' || this.#runs.nowMs + restMs >= untilMs) throw error
        call.isLate = true
        await pause(this.#instance.clock, restMs, claim.signal, this.#instance.closing)
      }
    }
  }

  /** Why the lock was refused. `over`: by a tick that is done, whose holder only looks or is about to release it. */
  async #foundElsewhere(holder: Holder, call: Call, { refusal }: Refused, done: string) {
    // Where votes are split, no one has the lock yet.
    if (refusal.holder === undefined) return 'unknown'
    const { name, overlap } = this.#options
    const theirs = refusal.holder.metadata?.['tick']
    if (theirs === call.tick) return 'same'
    if (await this.#runs.find(holder, done)) return 'done'
    if (typeof theirs !== 'string') return 'busy'
    return (await this.#runs.find(holder, tickNames(name, theirs, overlap).done)) === undefined ? 'busy' : 'over'
  }

  /** Waits for the run of another process, to take over if it does not end well. */
  async #wait(holder: Holder, claim: ClaimRequest, otherwise: Reason): Promise<Skipped | Granted> {
    if (claim.patienceMs === 0) return skipped(otherwise)
    this.#runs.reentry.assertOutside(claim, 'a run has no result before it has ended')
    const outcome = await holder.acquire(claim, (end) => end)
    return outcome instanceof LeaseUse ? { holder, lease: outcome } : skipped(otherwise)
  }

  #restMs(tries: number): number {
    return backoffMs(AFTER_OUTAGE, tries, this.#instance.random)
  }

  /** A later tick has come. With `missed: 'all'` that does not matter. */
  #isSuperseded(call: Call): boolean {
    const newest = this.#newest as Call
    return this.#options.missed !== 'all' && newest !== call && newest.tick !== call.tick
  }

  #yields(call: Call): boolean {
    const isSuperseded = this.#isSuperseded(call)
    // A call that has left the queue waited for a run elsewhere. A later tick runs by itself.
    if (!this.#queue.includes(call)) return isSuperseded
    this.#hasYielded = isSuperseded && !this.#hasYielded
    return this.#hasYielded
  }

  #leave(call: Call): void {
    const at = this.#queue.indexOf(call)
    if (at >= 0) this.#queue.splice(at, 1)
    call.leave()
  }

  /** Throws what is a failure, and not an end that the caller asked for. */
  #reasonOf(error: unknown): Reason {
    if (error instanceof AbortedError) return 'aborted'
    if (error instanceof ClosedError || (error instanceof LeaseLostError && this.#instance.closed)) return 'closed'
    throw error
  }
}

type Skipped = TickResult<never> & { ran: false }
type Reason = Skipped['reason']

interface Granted {
  readonly holder: Holder
  readonly lease: LeaseUse
}

class Call {
  readonly tick: string
  /** It could not run when it came: it had to wait behind another call, or for a store that was away. */
  isLate: boolean
  isAnswered = false
  readonly left: Promise<void>
  leave = (): void => undefined

  constructor(tick: string, isLate: boolean) {
    this.tick = tick
    this.isLate = isLate
    this.left = new Promise((resolve) => {
      this.leave = resolve
    })
  }
}

const skipped = (reason: Reason): Skipped => ({ ran: false, reason })
