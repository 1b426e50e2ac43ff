export { connect } from './connect.ts'
export type { Driver } from './core/driver.ts'
export {
  AbortedError,
  ClosedError,
  DeadlockError,
  type DeadlockStep,
  HoldfastError,
  type HoldfastErrorCode,
  InvalidArgumentError,
  LeaseLostError,
  MissingClientError,
  NotAcquiredError,
  NotHeldError,
  OverloadError,
  RateLimitedError,
  ResultNotKeptError,
  StaleTokenError,
  StoreError,
  UnsupportedError,
} from './core/errors.ts'
export type { ClaimEvent, LeaseEvent, LockEvent, LockEvents, LossReason } from './core/events.ts'
export type { FencingGuard } from './core/fencing.ts'
export type { Lease } from './core/lease/lease.ts'
export type { LockInfo } from './core/lock-info.ts'
export { type Leader, LeaderElection, type LeaderElectionOptions } from './primitives/election/leader-election.ts'
export type { CampaignOptions, DemotionReason, Term } from './primitives/election/term.ts'
export { Fence } from './primitives/fence.ts'
export type { CloseOptions } from './primitives/instance.ts'
export type { InstanceOptions } from './primitives/instance-options.ts'
export { DistributedLock, getDistributedLock } from './primitives/lock/any-store-lock.ts'
export type { LockOptions, LockResult } from './primitives/lock/claims.ts'
export type { DistributedLockOptions } from './primitives/lock/distributed-lock.ts'
export type { ForceReleaseOptions } from './primitives/lock/force-release.ts'
export type { LeaseInfo, LockInspection, WaiterInfo } from './primitives/lock/inspect.ts'
export { ReadWriteLock, type ReadWriteLockOptions } from './primitives/lock/read-write-lock.ts'
export { Semaphore, type SemaphoreOptions } from './primitives/lock/semaphore.ts'
export {
  OnceOnly,
  type OnceOptions,
  type OnceRun,
  type TickOptions,
  type TickResult,
} from './primitives/once/once-only.ts'
export { type RunCoordinator, runCoordinator } from './primitives/once/run-coordinator.ts'
export type {
  ConsumeOptions,
  LimitStanding,
  RateLimitOptions,
  RateLimitResult,
  RateWaitOptions,
} from './primitives/rate/limits.ts'
export { RateLimiter, type RateLimiterOptions } from './primitives/rate/rate-limiter.ts'
