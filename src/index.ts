export { connect } from './connect.ts'
export { type CheckedInspectQuery, checkInspectQuery } from './core/arguments.ts'
export type { Clock, Instant, Timer } from './core/clock.ts'
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
export type { AnswerOptions, Lease, LockInfo } from './core/lease.ts'
export type { Random } from './core/random.ts'
export { DistributedLock, getDistributedLock } from './primitives/any-store-lock.ts'
export type { DistributedLockOptions, RestoreOptions } from './primitives/distributed-lock.ts'
export { Fence } from './primitives/fence.ts'
export type { LeaseInfo, LockInspection, WaiterInfo } from './primitives/inspecting.ts'
export type { CloseOptions, InstanceOptions } from './primitives/instance.ts'
export {
  type CampaignOptions,
  type Leader,
  LeaderElection,
  type LeaderElectionOptions,
} from './primitives/leader-election.ts'
export type { LeadOptions } from './primitives/leading.ts'
export type { LockDefaults, LockOptions, PermitOptions } from './primitives/lock-options.ts'
export type { LockResult } from './primitives/lock-result.ts'
export type { ObserveOptions } from './primitives/observing.ts'
export { OnceOnly, type OnceOptions, type OnceRun, type TickOptions } from './primitives/once-only.ts'
export {
  type ConsumeOptions,
  RateLimiter,
  type RateLimiterOptions,
  type RateWaitOptions,
} from './primitives/rate-limiter.ts'
export type { LimitStanding, RateLimitOptions, RateLimitResult } from './primitives/rate-limits.ts'
export type { LocalShareOptions } from './primitives/rate-share.ts'
export { ReadWriteLock, type ReadWriteLockOptions } from './primitives/read-write-lock.ts'
export { Semaphore, type SemaphoreOptions } from './primitives/semaphore.ts'
export type { DemotionReason, Term } from './primitives/term.ts'
