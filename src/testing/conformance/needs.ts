import type { Capabilities } from '../../core/driver.ts'

/** What a test may need of a driver. Every skip of the suite comes from this table and states its reason. */
export type Need = keyof typeof needs

const needs = {
  ttl: {
    isMet: ({ expiry }: Capabilities) => expiry === 'ttl',
    reason: 'its leases last as long as the session that took them, none ends by time',
  },
  session: {
    isMet: ({ expiry }: Capabilities) => expiry === 'session',
    reason: 'its leases end by time, not with a connection',
  },
  fencing: {
    isMet: ({ fencing }: Capabilities) => fencing,
    reason: 'its grants carry no fencing token',
  },
  shared: {
    isMet: ({ shared }: Capabilities) => shared,
    reason: 'it has no shared mode',
  },
  limit: {
    isMet: ({ limit }: Capabilities) => limit,
    reason: 'it cannot count permits, so it has no semaphores',
  },
  queue: {
    isMet: ({ queue }: Capabilities) => queue,
    reason: 'it keeps no queue, so waiters of different processes are served in any order',
  },
  wake: {
    isMet: ({ wake }: Capabilities) => wake,
    reason: 'it cannot wake a waiter, so waiters poll',
  },
  metadata: {
    isMet: ({ metadata }: Capabilities) => metadata,
    reason: 'it keeps no metadata',
  },
  rate: {
    isMet: ({ rate }: Capabilities) => rate,
    reason: 'it has no rate limits',
  },
  forceUpTo: {
    isMet: ({ force }: Capabilities) => force === 'claim',
    reason: 'it cannot take a lock from its holder in one step',
  },
  force: {
    isMet: ({ force }: Capabilities) => force !== false,
    reason: 'it cannot end the lease of another client',
  },
  groups: {
    isMet: ({ groups }: Capabilities) => groups,
    reason: 'it cannot grant several names in one step',
  },
  ownClock: {
    isMet: ({ scope }: Capabilities) => scope === 'network',
    reason: 'its store lives on the machine of its clients and reads the same clock',
  },
}

/** Why the driver skips a test with these needs. Undefined if it meets all of them. */
export function unmetReason(capabilities: Capabilities, wanted: readonly Need[]): string | undefined {
  const missing = wanted.find((need) => !needs[need].isMet(capabilities))
  return missing && needs[missing].reason
}
