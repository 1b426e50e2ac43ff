// For the heartbeat thread: requests that renew for less than the lease's TTL (confirmations) reach the store late.
import { openRemoteMemory } from '../../harness/remote-memory.mjs'

export async function openLate(port, shorterThanMs, delayMs) {
  const driver = await openRemoteMemory(port)
  return {
    ...driver,
    renew: async (renewals) => {
      if (renewals.some(({ ttlMs }) => ttlMs < shorterThanMs))
        await new Promise((resolve) => setTimeout(resolve, delayMs))
      return driver.renew(renewals)
    },
  }
}
