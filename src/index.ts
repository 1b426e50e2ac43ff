export { connect } from './connect.ts'
export { type CheckedInspectQuery, checkInspectQuery } from './core/arguments.ts'
export type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  DriverListener,
  Grant,
  InspectPage,
  InspectQuery,
  LeaseRecord,
  LeaseRef,
  Metadata,
  RateAnswer,
  RateChange,
  RateLimit,
  RateRequest,
  Refusal,
  RenewAnswer,
  Renewal,
  Reopen,
  StopListening,
  WaiterRecord,
} from './core/driver.ts'
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
export type { LockEvent, LockEvents, LockListener } from './core/events.ts'
export type { FencingGuard, Token } from './core/fencing.ts'
export type { AnswerOptions, Lease } from './core/lease/lease.ts'
export type { LockInfo } from './core/lock-info.ts'
export type { Clock, Instant, Timer } from './core/time/clock.ts'
export type { Random } from './core/time/random.ts'
export type { CampaignOptions } from './primitives/election/campaign-options.ts'
export { type Leader, LeaderElection, type LeaderElectionOptions } from './primitives/election/leader-election.ts'
export type { ObserveOptions } from './primitives/election/observe.ts'
export type { LeadOptions } from './primitives/election/run.ts'
export type { DemotionReason, Term } from './primitives/election/term.ts'
export { Fence } from './primitives/fence.ts'
export type { CloseOptions, InstanceOptions } from './primitives/instance.ts'
export { DistributedLock, getDistributedLock } from './primitives/lock/any-store-lock.ts'
export type { DistributedLockOptions, RestoreOptions } from './primitives/lock/distributed-lock.ts'
export type { LeaseInfo, LockInspection, WaiterInfo } from './primitives/lock/inspect.ts'
export type { LockDefaults, LockOptions, PermitOptions } from './primitives/lock/options.ts'
export { ReadWriteLock, type ReadWriteLockOptions } from './primitives/lock/read-write-lock.ts'
export type { LockResult } from './primitives/lock/result.ts'
export { Semaphore, type SemaphoreOptions } from './primitives/lock/semaphore.ts'
export { OnceOnly, type OnceOptions, type OnceRun, type TickOptions } from './primitives/once/once-only.ts'
export type { LimitStanding, RateLimitOptions, RateLimitResult } from './primitives/rate/limits.ts'
export type { LocalShareOptions } from './primitives/rate/local-share.ts'
export {
  type ConsumeOptions,
  RateLimiter,
  type RateLimiterOptions,
  type RateWaitOptions,
} from './primitives/rate/rate-limiter.ts'
