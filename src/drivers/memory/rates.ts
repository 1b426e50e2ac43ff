import { checkInspectQuery } from '../../core/arguments.ts'
import type { RateAnswer, RateRecord, RateRequest, RatesPage, RatesQuery } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { type Clock, systemClock, type Timer } from '../../core/time/clock.ts'
import { wallClock } from '../../core/time/native-time.ts'
import {
  consumeStep,
  endOf,
  limitFromId,
  type Moment,
  noMoment,
  type Policy,
  policyFor,
} from '../shared/consume-step.ts'

/**
 * The rate limits of a memory store. A sweep removes those that are no longer used, and runs as long as there are any.
 *
 * `consumeStep` does `takeStep` and `answerTake` at once for a single request, so that no list of takes is made. The
 * counting itself is shared. `test/primitives/rate/policies.test.ts` and the groups `driver interface: … rate limits`
 * of the conformance suite keep both equal.
 */
export function createRates(clock: Clock): Rates {
  /** For each limit, by its id, the moments of the names that used it. */
  const tables = new Map<string, Table>()
  // Only the wall clock of the two system clocks is read: the other one would double the cost of a step.
  const nowMs = clock === systemClock ? () => wallClock.nowMs() : () => clock.now().wallMs
  let round = sweepRound()
  let sweeping: Timer | undefined
  /** Mostly the next request has the policy of the last one. */
  let found: Found | undefined

  function consume(requests: readonly RateRequest[]): RateAnswer[] {
    const now = nowMs()
    return requests.map((request) => take(request, now))
  }

  function take(request: RateRequest, now: number): RateAnswer {
    const policy = policyFor(request)
    if (found?.policy !== policy) found = { policy, tables: policy.ids.map(tableOf) }
    const { name, change } = request
    const { tables: own } = found
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

  /** Nothing is kept for a look, or for a refused request. */
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

  /** Sweeps a bounded part at a time, so that no call waits for it. */
  function sweep(): void {
    let looked = 0
    while (looked < MAX_LOOKED_AT && !round.next().done) looked += 1
    const isRound = looked < MAX_LOOKED_AT
    if (isRound) round = sweepRound()
    sweeping = undefined
    if (tables.size > 0) sweepLater(isRound ? SWEEP_EVERY_MS : 1)
  }

  /** Deletes expired moments, and stops after each one. */
  function* sweepRound(): Generator<undefined> {
    for (const [id, table] of tables) {
      for (const [name, moment] of table) {
        if (endOf(moment) <= nowMs()) table.delete(name)
        yield
      }
      if (table.size === 0) {
        tables.delete(id)
        // Otherwise the next request would be kept in a table that is no longer used.
        found = undefined
      }
      yield
    }
  }

  /** The cursor is a number of limits to skip. What is added or removed meanwhile can move the others by one. */
  function inspect(query: RatesQuery): RatesPage {
    const { prefix, after, pageSize } = checkInspectQuery(query)
    if (after !== undefined && !/^\d+$/.test(after)) {
      throw new InvalidArgumentError('after', after, '`next` of the page before')
    }
    const now = nowMs()
    const rates: RateRecord[] = []
    let at = 0
    for (const [id, table] of tables) {
      const limit = limitFromId(id)
      for (const [name, moment] of table) {
        at += 1
        if (at <= Number(after ?? 0) || limit === undefined || !name.startsWith(prefix) || endOf(moment) <= now)
          continue
        if (rates.length === pageSize) return { rates, next: `${at - 1}` }
        rates.push({ name, limit })
      }
    }
    return { rates }
  }

  return {
    consume,
    inspect,
    get size() {
      return [...tables.values()].reduce((sum, table) => sum + table.size, 0)
    },
  }
}

export interface Rates {
  consume(requests: readonly RateRequest[]): RateAnswer[]
  inspect(query: RatesQuery): RatesPage
  /** How many moments are kept: one for each name and limit. */
  readonly size: number
}

type Table = Map<string, Moment>

interface Found {
  readonly policy: Policy
  readonly tables: readonly Table[]
}

const SWEEP_EVERY_MS = 1_000
const MAX_LOOKED_AT = 2_000
