import { clientOf } from '../history.ts'
import { type Check, leasesOf } from './run.ts'

/**
 * A lease that the store has lost ends for its holder, too: no renewal succeeds any more. So it is not relied on for
 * longer than the longest lease.
 */
export const ended: Check = {
  name: 'ended',
  find: (run) =>
    run.losses
      .filter(({ endsAll = false }) => endsAll)
      .flatMap(({ fromMs, toMs, clients }) =>
        leasesOf(run)
          .filter(({ id }) => clients?.includes(clientOf(id)) ?? true)
          .filter(({ knownAt, heldUntil = 0 }) => knownAt < fromMs && heldUntil > toMs + run.longestTtlMs)
          .map((lease) => ({
            text: `${lease.id} held "${lease.name}" until ${(lease.heldUntil ?? 0) - toMs} ms after it was lost`,
            ...{ lockName: lease.name, leases: [lease], fromMs, toMs: lease.heldUntil ?? toMs },
          })),
      ),
}
