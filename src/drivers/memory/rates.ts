import type { RateAnswer, RateChange, RateRequest } from '../../core/driver.ts'
import { type Clock, systemClock, type Timer } from '../../core/time/clock.ts'
import { wallClock } from '../../core/time/native-time.ts'
import {
  consumeOne,
  consumeStep,
  endOf,
  type Moment,
  noMoment,
  type Policy,
  policyFor,
} from '../shared/consume-step.ts'

/**
 * The rates of a store in memory. One that is used no more leaves nothing behind: a sweep goes round as long as there
 * are any.
 */
export function createRates(clock: Clock): Rates {
  /** For each limit, by its id, the moments of the names that it was asked for. */
  const tables = new Map<string, Table>()
  // The system's own is asked for one of its two clocks only: that is half of what a step costs.
  const nowMs = clock === systemClock ? () => wallClock.nowMs() : () => clock.now().wallMs
  let round = sweepRound()
  let sweeping: Timer | undefined
  /** Mostly the next request has the policy of the last one. */
  let found: Found | undefined

  function consume(requests: readonly RateRequest[]): RateAnswer[] {
    const now = nowMs()
    // A single one is what a limiter in the same process asks for, and what it costs is counted in nanoseconds.
    return requests.length === 1 ? [take(requests[0] as RateRequest, now)] : requests.map((each) => take(each, now))
  }

  function take(request: RateRequest, now: number): RateAnswer {
    const policy = policyFor(request)
    if (found?.policy !== policy) found = find(policy)
    const { name, cost, change } = request
    if (policy.ids.length > 1 || cost === 0) return takeAll(found, name, now, change)
    const table = found.tables[0] as Table
    const known = table.get(name)
    const moment = known ?? noMoment()
    const answer = consumeOne(policy, moment, now)
    if (known === undefined) keep(table, name, moment)
    return answer
  }

  function find(policy: Policy): Found {
    return { policy, tables: policy.ids.map(tableOf) }
  }

  function takeAll({ policy, tables: own }: Found, name: string, now: number, change?: RateChange): RateAnswer {
    let isFresh = false
    const moments = own.map((table) => {
      const known = table.get(name)
      isFresh ||= known === undefined
      return known ?? noMoment()
    })
    const answer = consumeStep(policy, moments, now, change)
    if (change === 'reset') for (const table of own) table.delete(name)
    else if (isFresh) for (const [at, table] of own.entries()) keep(table, name, moments[at] as Moment)
    return answer
  }

  /** Nothing is kept of a look, or of what was refused. */
  function keep(table: Table, name: string, moment: Moment): void {
    if (endOf(moment) > 0) table.set(name, moment)
  }

  function tableOf(id: string): Table {
    const known = tables.get(id)
    if (known !== undefined) return known
    const table: Table = new Map()
    tables.set(id, table)
    if (sweeping === undefined) sweepLater(SWEEP_EVERY_MS)
    return table
  }

  function sweepLater(ms: number): void {
    sweeping = clock.setTimer(sweep, ms)
  }

  /** A bounded part at a time, so that nobody waits for it. */
  function sweep(): void {
    let looked = 0
    while (looked < MAX_LOOKED_AT && !round.next().done) looked += 1
    const isRound = looked < MAX_LOOKED_AT
    if (isRound) round = sweepRound()
    sweeping = undefined
    if (tables.size > 0) sweepLater(isRound ? SWEEP_EVERY_MS : 1)
  }

  /** Deletes what has run out, and stops after each look. */
  function* sweepRound(): Generator<undefined> {
    for (const [id, table] of tables) {
      for (const [name, moment] of table) {
        if (endOf(moment) <= nowMs()) table.delete(name)
        yield
      }
      if (table.size === 0) {
        tables.delete(id)
        // Or what is taken next would be kept in a table that is no longer looked at.
        found = undefined
      }
      yield
    }
  }

  return {
    consume,
    get size() {
      return [...tables.values()].reduce((sum, table) => sum + table.size, 0)
    },
  }
}

export interface Rates {
  consume(requests: readonly RateRequest[]): RateAnswer[]
  /** How many moments are remembered: one for each name and limit. */
  readonly size: number
}

type Table = Map<string, Moment>

interface Found {
  readonly policy: Policy
  readonly tables: readonly Table[]
}

const SWEEP_EVERY_MS = 1_000
const MAX_LOOKED_AT = 2_000
