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
export type { LockEvent, LockEvents, LossReason } from './core/events.ts'
export type { Lease } from './core/lease/lease.ts'
export type { LockInfo } from './core/lock-info.ts'
export type { CloseOptions } from './primitives/instance.ts'
export {
  DistributedLock,
  type DistributedLockOptions,
} from './primitives/lock/distributed-lock.ts'
export type { ForceReleaseOptions } from './primitives/lock/force-release.ts'
export type { LeaseInfo, LockInspection, WaiterInfo } from './primitives/lock/inspect.ts'
export type { LockOptions } from './primitives/lock/options.ts'
export type { LockResult } from './primitives/lock/result.ts'
