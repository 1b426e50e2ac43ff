import type { InspectPage, InspectQuery, LeaseRecord, WaiterRecord } from './driver.ts'

/**
 * Follows `next` to the last page, or to the page that reaches a bound, and returns all leases and waiters. A lease
 * that is renewed between two pages may be on both of them. It is returned once.
 */
export async function readPages(
  inspect: (query: InspectQuery) => Promise<InspectPage>,
  query: InspectQuery,
  { pages: maxPages = Number.POSITIVE_INFINITY, records: maxRecords = Number.POSITIVE_INFINITY }: PageBounds = {},
): Promise<ReadPages> {
  const leases = new Map<string, LeaseRecord>()
  const waiters = new Map<string, WaiterRecord>()
  let after: string | undefined
  let pages = 0
  do {
    const page = await inspect({ ...query, ...(after !== undefined && { after }) })
    for (const lease of page.leases) addTo(leases, lease)
    for (const waiter of page.waiters) addTo(waiters, waiter)
    after = page.next
    pages += 1
  } while (after !== undefined && pages < maxPages && leases.size + waiters.size < maxRecords)
  return { leases: [...leases.values()], waiters: [...waiters.values()], complete: after === undefined }
}

export interface PageBounds {
  readonly pages?: number
  /** Leases and waiters together. */
  readonly records?: number
}

export interface ReadPages extends Pick<InspectPage, 'leases' | 'waiters'> {
  /** False if a bound was reached before the last page. */
  readonly complete: boolean
}

/** The lock name is part of the key: claims of other clients may have the same id on two names. */
function addTo<Each extends LeaseRecord | WaiterRecord>(records: Map<string, Each>, record: Each): void {
  const key = `${record.lockName}\0${record.claimId}`
  if (!records.has(key)) records.set(key, record)
}
