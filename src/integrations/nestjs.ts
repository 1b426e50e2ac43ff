export type { HealthReport } from './health.ts'
export { HoldfastHealth } from './nestjs/health.ts'
export { currentLease, Locked, type LockedDecorator, type LockedOptions } from './nestjs/locked.ts'
export {
  type HoldfastAsyncOptions,
  HoldfastModule,
  type HoldfastModuleDefinition,
  type HoldfastModuleOptions,
  type HoldfastProvider,
} from './nestjs/module.ts'
