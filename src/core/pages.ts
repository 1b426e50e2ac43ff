import type { InspectPage, InspectQuery, LeaseRecord, WaiterRecord } from './driver.ts'

/**
 * Follows `next` to the end, or for so many pages, and puts the pages together. A lease that is renewed between two pages
 * may be on both of them: it is there once.
 */
export async function readPages(
  inspect: (query: InspectQuery) => Promise<InspectPage>,
  query: InspectQuery,
  mostPages = Number.POSITIVE_INFINITY,
): Promise<Pick<InspectPage, 'leases' | 'waiters'>> {
  const leases = new Map<string, LeaseRecord>()
  const waiters = new Map<string, WaiterRecord>()
  let after: string | undefined
  for (let pages = 0; pages < mostPages; pages += 1) {
    const page = await inspect({ ...query, ...(after !== undefined && { after }) })
    for (const lease of page.leases) addTo(leases, lease)
    for (const waiter of page.waiters) addTo(waiters, waiter)
    after = page.next
    if (after === undefined) break
  }
  return { leases: [...leases.values()], waiters: [...waiters.values()] }
}

/** Another client's claim may have the same id under two names. */
function addTo<Each extends LeaseRecord | WaiterRecord>(records: Map<string, Each>, record: Each): void {
  const key = `${record.lockName}\0${record.claimId}`
  if (!records.has(key)) records.set(key, record)
}
