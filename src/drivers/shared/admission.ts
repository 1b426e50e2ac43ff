import { fitsBeside, type LockShare } from '../../core/lock-share.ts'

/**
 * Those of a queue who may have the lock now: from the front, as many as fit beside the leases that are out and beside
 * each other. Nobody overtakes the first one who does not fit, so a writer is not starved by readers that keep coming.
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
