export type { Driver } from './core/driver.ts'
export {
  AbortedError,
  ClosedError,
  DeadlockError,
  HoldfastError,
  type HoldfastErrorCode,
  InvalidArgumentError,
  LeaseLostError,
  MissingClientError,
  NotAcquiredError,
  NotHeldError,
  OverloadError,
  StaleTokenError,
  StoreError,
  UnsupportedError,
} from './core/errors.ts'
export type { ClaimEvent, LeaseEvent, LockEvent, LockEvents, LossReason } from './core/events.ts'
export type { Lease } from './core/lease/lease.ts'
export type { LockInfo } from './core/lock-info.ts'
export type { CloseOptions } from './primitives/instance.ts'
export type { LockOptions, LockResult } from './primitives/lock/claims.ts'
export {
  DistributedLock,
  type DistributedLockOptions,
} from './primitives/lock/distributed-lock.ts'
export type { ForceReleaseOptions } from './primitives/lock/force-release.ts'
export type { LeaseInfo, LockInspection, WaiterInfo } from './primitives/lock/inspect.ts'
