import type { RateRecord } from '../core/driver.ts'
import type { StoreClient } from '../core/store/store-client.ts'
import type { RateDetail, RateList } from './wire.ts'

/** The limits in use, with their levels. Nothing is taken: a cost of 0 only looks. */
export async function readRates(client: StoreClient): Promise<RateList> {
  const records: RateRecord[] = []
  let after: string | undefined
  let pages = 0
  do {
    const page = await client.inspectRates({ pageSize: MAX_RATES, ...(after !== undefined && { after }) })
    records.push(...(page?.rates ?? []))
    after = page?.next
    pages += 1
  } while (after !== undefined && records.length < MAX_RATES && pages < MAX_PAGES)
  const shown = unique(records).slice(0, MAX_RATES)
  const rates = await Promise.all(shown.map((record) => levelOf(client, record)))
  return {
    rates: rates.filter(({ usedMs, blockedMs }) => usedMs > 0 || blockedMs > 0).sort(byName),
    complete: after === undefined && records.length <= MAX_RATES,
  }
}

async function levelOf(client: StoreClient, { name, limit }: RateRecord): Promise<RateDetail> {
  const answer = await client.rateSteps.ask({ name, cost: 0, limits: [limit] })
  return { name, ...limit, usedMs: answer.usedMs[0] ?? 0, blockedMs: answer.blockedMs ?? 0 }
}

/** A walk over the keys of Redis can return a key twice. */
const unique = (records: readonly RateRecord[]): RateRecord[] => [
  ...new Map(records.map((each) => [`${each.name}\0${Object.values(each.limit).join()}`, each])).values(),
]

const byName = (a: RateDetail, b: RateDetail): number =>
  a.name < b.name ? -1 : a.name > b.name ? 1 : a.limit - b.limit

/** More are not shown. The page says so. */
const MAX_RATES = 500
/** In a large Redis without rate limits, a page may be empty and be followed by another one. */
const MAX_PAGES = 20
