import type { LeaseRef, Reopen } from '../driver.ts'
import type { Extent, RenewerStart } from './renewer.ts'
import type { Slot } from './shared-deadlines.ts'

export interface WorkerStart {
  readonly reopen: Reopen
  readonly callTimeoutMs: number
  readonly stalledAfterMs: number
  /** The main thread's last sign of life, in whole milliseconds of the monotonic clock, which all threads share. */
  readonly life: BigInt64Array
}

/** A lease is called by its claim's id. */
export type ToWorker =
  | {
      readonly type: 'keep'
      readonly slot: Slot
      readonly ref: LeaseRef & { readonly fencingToken: number }
      readonly ttlMs: number
      readonly start: RenewerStart
      readonly maxHoldMs: number
    }
  | { readonly type: 'renew'; readonly id: string; readonly call: number; readonly ttlMs: number; readonly how: Extent }
  | { readonly type: 'check'; readonly id: string }
  | { readonly type: 'end'; readonly id: string }

export type FromWorker =
  | RenewedMessage
  | { readonly type: 'ended'; readonly id: string }
  | { readonly type: 'kept'; readonly id: string }
  | { readonly type: 'lost'; readonly id: string; readonly reason: string }
  | { readonly type: 'failed'; readonly id: string; readonly error: string }

export interface RenewedMessage extends RenewAnswer {
  readonly type: 'renewed'
  readonly call: number
}

export interface RenewAnswer {
  readonly renewed: boolean
  readonly error?: string
}
