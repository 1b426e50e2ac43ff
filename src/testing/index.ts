export {
  type ConformanceOptions,
  type ConformanceStore,
  driverConformance,
} from './conformance/driver-conformance.ts'
export {
  type CallCounts,
  type DriverMethod,
  type Fault,
  fails,
  type HeldCall,
  holdReply,
  holdRequest,
  type InterferingDriver,
  interferingDriver,
  losesReply,
} from './conformance/interfering-driver.ts'
export {
  type MutexHandle,
  type MutexInstance,
  type MutexSubject,
  type MutexSubjectOptions,
  mutexSubjects,
  type Taken,
} from './conformance/mutex-subjects.ts'
export type { RegisterTest, TestRunner } from './conformance/runner.ts'
export type { BreakableStore } from './conformance/seam/broken-store.ts'
