import type { DriverListener, LossListener } from '../../core/driver.ts'

/** A listener to which messages for waiters mean nothing. */
export const lossesOnly = (listener: LossListener): DriverListener => ({
  wake() {},
  granted() {},
  lost: (claimId, cause) => listener.lost(claimId, cause),
  disconnected: (cause) => listener.disconnected(cause),
})
