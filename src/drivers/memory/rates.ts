import { checkInspectQuery } from '../../core/arguments.ts'
import type { RateAnswer, RateRecord, RateRequest, RatesPage, RatesQuery } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import type { Clock } from '../../core/time/clock.ts'
import { consumeStep, endOf, limitFromId, type Moment, noMoment, policyFor } from '../shared/consume-step.ts'
import { createSweep, wallClockOf } from './time.ts'

/** The rate limits of a memory store. A sweep removes those that are no longer used. */
export function createRates(clock: Clock) {
  /** For each limit, by its id, the moments of the names that used it. */
  const tables = new Map<string, Table>()
  const nowMs = wallClockOf(clock)
  const startSweep = createSweep(clock, sweepRound)

  function consume(requests: readonly RateRequest[]): RateAnswer[] {
    const now = nowMs()
    return requests.map((request) => take(request, now))
  }

  function take(request: RateRequest, now: number): RateAnswer {
    const policy = policyFor(request)
    const moments = policy.ids.map((id) => tables.get(id)?.get(request.name) ?? noMoment())
    const answer = consumeStep(policy, moments, now, request.change)
    for (const [at, moment] of moments.entries()) {
      // Nothing is kept for a look, a refused request, or a limit that was reset.
      if (endOf(moment) > 0) tableOf(policy.ids[at] as string).set(request.name, moment)
      else tables.get(policy.ids[at] as string)?.delete(request.name)
    }
    return answer
  }

  function tableOf(id: string): Table {
    const known = tables.get(id)
    if (known !== undefined) return known
    const table: Table = new Map()
    tables.set(id, table)
    startSweep()
    return table
  }

  function* sweepRound(): Generator<undefined, boolean> {
    for (const [id, table] of tables) {
      for (const [name, moment] of table) {
        if (endOf(moment) <= nowMs()) table.delete(name)
        yield
      }
      if (table.size === 0) tables.delete(id)
      yield
    }
    return tables.size > 0
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
    /** How many moments are kept: one for each name and limit. */
    get size() {
      return [...tables.values()].reduce((sum, table) => sum + table.size, 0)
    },
  }
}

type Table = Map<string, Moment>
