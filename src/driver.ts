export { type CheckedInspectQuery, checkInspectQuery } from './core/arguments.ts'
export type {
  AcquireAnswer,
  Capabilities,
  Claim,
  Driver,
  DriverListener,
  ForceOptions,
  Grant,
  InspectPage,
  InspectQuery,
  LeaseRecord,
  LeaseRef,
  LossListener,
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
export { type Clock, type Instant, systemClock, type Timer } from './core/time/clock.ts'
export { type Random, systemRandom } from './core/time/random.ts'
