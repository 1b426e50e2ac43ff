import type { Driver } from '../../core/driver.ts'
import type { LockInfo } from '../../core/lock-info.ts'
import type { LockOptions } from '../../primitives/lock/claims.ts'
import type { Need } from './needs.ts'

/** A primitive that can act as a mutex. All of them run the same groups of tests. */
export interface MutexSubject {
  readonly name: string
  /** What it needs of a driver beyond exclusive claims. */
  readonly needs: readonly Need[]
  open(options: MutexSubjectOptions): MutexInstance
}

export interface MutexSubjectOptions {
  readonly driver: Driver
  readonly holderId: string
  readonly callTimeoutSeconds?: number
  readonly waiterTtlSeconds?: number
}

/** One process's instance. */
export interface MutexInstance {
  /** Waits by default. Contention is a value; everything else rejects. */
  take(lockName: string, options?: LockOptions): Promise<Taken>
  /**
   * How often it has asked the store when it begins to wait.
   * @default 1
   */
  readonly asksBeforeWaiting?: number
  close(): Promise<void>
}

export type Taken =
  | { readonly acquired: true; readonly handle: MutexHandle }
  | { readonly acquired: false; readonly holder: LockInfo | undefined }

export interface MutexHandle {
  readonly held: boolean
  readonly signal: AbortSignal
  readonly fencingToken: number
  /** True if it was still held. */
  release(): Promise<boolean>
}
