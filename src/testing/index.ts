export { type ConformanceOptions, driverConformance } from './conformance/driver-conformance.ts'
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
export type { MutexHandle, MutexInstance, MutexSubject, MutexSubjectOptions, Taken } from './conformance/mutex.ts'
export { mutexSubjects } from './conformance/mutex-subjects.ts'
export type { RegisterTest, TestRunner } from './conformance/runner.ts'
export type { BreakableStore } from './conformance/seam/broken-store.ts'
export type { ConformanceStore } from './conformance/store.ts'
export { type DriverMode, type Faults, faultyDriver, noFaults } from './faulty-driver.ts'
export { type Plan, planFrom } from './simulation/plan.ts'
export { simplerPlans } from './simulation/simplify.ts'
export { type SimulationOptions, type SimulationReport, simulate } from './simulation/simulate.ts'
export type { OpenStore } from './simulation/store.ts'
export { type SeededRandom, seededRandom, VirtualClock, VirtualTime } from './virtual-clock.ts'
