import type { InspectPage, InspectQuery, LeaseRecord, WaiterRecord } from './driver.ts'

/**
 * Follows `next` to the end, or to the page with which a bound is reached, and puts the pages together. A lease that is
 * renewed between two pages may be on both of them: it is there once.
 */
export async function readPages(
  inspect: (query: InspectQuery) => Promise<InspectPage>,
  query: InspectQuery,
  { pages: mostPages = Number.POSITIVE_INFINITY, records: mostRecords = Number.POSITIVE_INFINITY }: PageBounds = {},
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
  } while (after !== undefined && pages < mostPages && leases.size + waiters.size < mostRecords)
  return { leases: [...leases.values()], waiters: [...waiters.values()], complete: after === undefined }
}

export interface PageBounds {
  readonly pages?: number
  /** Leases and waiters together. */
  readonly records?: number
}

export interface ReadPages extends Pick<InspectPage, 'leases' | 'waiters'> {
  /** False: a bound ended the reading. */
  readonly complete: boolean
}

/** Another client's claim may have the same id under two names. */
function addTo<Each extends LeaseRecord | WaiterRecord>(records: Map<string, Each>, record: Each): void {
  const key = `${record.lockName}\0${record.claimId}`
  if (!records.has(key)) records.set(key, record)
}
