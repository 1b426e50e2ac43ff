import type { CheckedInspectQuery } from '../../core/arguments.ts'
import type { RateAnswer, RateRecord, RateRequest, RatesPage } from '../../core/driver.ts'
import { consumeStep, endOf, limitFromId, type Moment, policyFor } from '../shared/consume-step.ts'
import type { SqliteConnection } from './connection.ts'
import { readCursor, readNow } from './rows.ts'

/** Call it within a transaction. Requests of a list on one name share what is read and written. */
export function consume(connection: SqliteConnection, requests: readonly RateRequest[], nowMs: number): RateAnswer[] {
  const kept = new Map<string, { name: string; id: string; before: Moment; moment: Moment }>()
  function momentFor(name: string, id: string): Moment {
    const key = `${id} ${name}`
    const known = kept.get(key)
    if (known !== undefined) return known.moment
    const before = momentOf(connection.get('rate', name, id) as RateRow | undefined)
    const moment = { ...before }
    kept.set(key, { name, id, before, moment })
    return moment
  }
  const answers = requests.map((request) => {
    const policy = policyFor(request)
    const moments = policy.ids.map((id) => momentFor(request.name, id))
    return consumeStep(policy, moments, nowMs, request.change)
  })
  for (const { name, id, before, moment } of kept.values()) {
    if (moment.atMs === before.atMs && moment.untilMs === before.untilMs) continue
    if (endOf(moment) === 0) connection.run('delete_rate', name, id)
    else connection.run('set_rate', name, id, endOf(moment), blockText(moment, nowMs))
  }
  return answers
}

/** Reads one page. Rows are read in parts: a prefix may select few of many. */
export function inspectRates(
  connection: SqliteConnection,
  { prefix, after, pageSize }: CheckedInspectQuery,
): RatesPage {
  const nowMs = readNow(connection)
  const rates: RateRecord[] = []
  let [name, id] = after === undefined ? [prefix, ''] : readCursor<[name: string, id: string]>(after, isNameAndId)
  for (;;) {
    const rows = connection.all('rates_from', name, id, nowMs, ROWS_AT_ONCE) as RateNameRow[]
    for (const row of rows) {
      const limit = limitFromId(row.limit_id)
      // Names are in order, byte by byte: behind the last one with the prefix there is none.
      if (!row.name.startsWith(prefix)) return { rates }
      if (rates.length === pageSize) return { rates, next: JSON.stringify([name, id]) }
      name = row.name
      id = row.limit_id
      if (limit !== undefined) rates.push({ name, limit })
    }
    if (rows.length < ROWS_AT_ONCE) return { rates }
  }
}

interface RateNameRow {
  readonly name: string
  readonly limit_id: string
}

const isNameAndId = ([name, id]: readonly unknown[]): boolean => typeof name === 'string' && typeof id === 'string'

const ROWS_AT_ONCE = 500

/** A blocked row keeps its moment beside the block, and ends with the later of the two. */
function momentOf(row: RateRow | undefined): Moment {
  const [atMs = 0, untilMs = 0, blockMs = 0] = row?.block?.split(' ').map(Number) ?? [row?.reset_at_ms]
  return { atMs, untilMs, blockMs }
}

interface RateRow {
  readonly reset_at_ms: number
  readonly block: string | null
}

const blockText = ({ atMs, untilMs, blockMs }: Moment, nowMs: number): string | null =>
  untilMs > nowMs ? `${atMs} ${untilMs} ${blockMs}` : null
