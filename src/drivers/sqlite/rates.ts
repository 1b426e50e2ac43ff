import type { CheckedInspectQuery } from '../../core/arguments.ts'
import type { RateRecord, RatesPage } from '../../core/driver.ts'
import { InvalidArgumentError } from '../../core/errors.ts'
import { endOf, limitFromId, type Moment, type Take, type Taken, takeStep } from '../shared/consume-step.ts'
import type { SqliteConnection } from './connection.ts'
import { readNow } from './rows.ts'

/** Reads without the write lock: a look does not wait for another process, and deletes nothing. */
export function lookAll(connection: SqliteConnection, looks: readonly Take[]): Promise<Taken[]> {
  return connection.read(() => {
    const nowMs = readNow(connection)
    return looks.map((look) => takeOne(connection, look, nowMs))
  })
}

export function takeOne(connection: SqliteConnection, take: Take, nowMs: number): Taken {
  const { name, policy } = take
  const kept = policy.ids.map((id) => momentOf(connection.get('rate', name, id) as RateRow | undefined))
  const moments = kept.map((moment) => ({ ...moment }))
  const taken = takeStep(take, moments, nowMs)
  moments.forEach((moment, at) => {
    const before = kept[at] as Moment
    if (moment.atMs === before.atMs && moment.untilMs === before.untilMs) return
    const id = policy.ids[at] as string
    if (endOf(moment) === 0) connection.run('delete_rate', name, id)
    else connection.run('set_rate', name, id, endOf(moment), blockText(moment, nowMs))
  })
  return taken
}

/** Reads one page. Rows are read in parts: a prefix may select few of many. */
export function inspectRates(
  connection: SqliteConnection,
  { prefix, after, pageSize }: CheckedInspectQuery,
): RatesPage {
  const nowMs = readNow(connection)
  const rates: RateRecord[] = []
  let [name, id] = after === undefined ? [prefix, ''] : readCursor(after)
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

const ROWS_AT_ONCE = 500

function readCursor(after: string): [name: string, id: string] {
  try {
    const [name, id] = JSON.parse(after) as unknown[]
    if (typeof name === 'string' && typeof id === 'string') return [name, id]
  } catch {
    // The error below says what is wrong.
  }
  throw new InvalidArgumentError('after', after, '`next` of the page before')
}

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
