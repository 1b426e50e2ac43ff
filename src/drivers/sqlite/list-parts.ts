import type { Clock } from '../../core/time/clock.ts'
import { type GroupMember, groupSize } from '../shared/groups.ts'
import { MAX_BUSY_MS } from './patience.ts'

/**
 * Runs a long list as several transactions, one after the other, so that its entries are still taken in their order.
 * The claims of a group stay in one transaction. Together, the parts try for the write lock as long as a short list
 * may: otherwise a busy file would use up the deadline of the call, and all its entries would count as unknown.
 *
 * A part that fails was rolled back, and its entries are answered with the error. The other parts were committed and
 * keep their answers. Rejects if every part fails.
 */
export async function inParts<Request, Answer>(
  clock: Clock,
  requests: readonly Request[],
  transact: (part: readonly Request[], busyUntilMs?: number) => Promise<readonly (Answer | Error)[]>,
): Promise<readonly (Answer | Error)[]> {
  if (requests.length <= MAX_LIST_LENGTH) return transact(requests)
  const parts = partsOf(requests)
  const busyUntilMs = clock.now().monotonicMs + MAX_BUSY_MS
  const answers: (Answer | Error)[] = []
  const failures: unknown[] = []
  for (const part of parts) {
    try {
      answers.push(...(await transact(part, busyUntilMs)))
    } catch (error) {
      failures.push(error)
      answers.push(...part.map(() => error as Error))
    }
  }
  if (failures.length === parts.length) throw failures[0]
  return answers
}

function partsOf<Request>(requests: readonly Request[]): (readonly Request[])[] {
  const parts: (readonly Request[])[] = []
  let start = 0
  // Only claims have a group: any other request is cut anywhere.
  for (let at = 0; at < requests.length; ) {
    const end = at + groupSize(requests as readonly GroupMember[], at)
    if (end - start > MAX_LIST_LENGTH && at > start) {
      parts.push(requests.slice(start, at))
      start = at
    }
    at = end
  }
  parts.push(requests.slice(start))
  return parts
}

/** The file and the event loop are blocked during a transaction: a few milliseconds with this many entries. */
const MAX_LIST_LENGTH = 200
