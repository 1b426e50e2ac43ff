import { fitsBeside, type LockShare } from '../../core/lock-share.ts'

/**
 * From the front of the queue, as many waiters as fit beside the leases and beside each other. No waiter overtakes the
 * first one that does not fit, so readers that keep coming do not starve a writer.
 */
export function admitted<Waiter>(
  leases: readonly LockShare[],
  queue: readonly Waiter[],
  shareOf: (waiter: Waiter) => LockShare,
): Waiter[] {
  const held = [...leases]
  const end = queue.findIndex((waiter) => {
    const share = shareOf(waiter)
    const fits = fitsBeside(share, held)
    if (fits) held.push(share)
    return !fits
  })
  return end === -1 ? [...queue] : queue.slice(0, end)
}
