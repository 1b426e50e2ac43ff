import type { LeaseRef, Reopen } from '../driver.ts'
import type { Loss, RenewerStart, RenewMode } from './renewer.ts'
import type { Slot } from './shared-deadlines.ts'

export interface WorkerStart {
  readonly reopen: Reopen
  readonly callTimeoutMs: number
  readonly stalledAfterMs: number
  /** When the main thread last ran, in whole milliseconds of the monotonic clock, which all threads share. */
  readonly lastAlive: BigInt64Array
}

/** `id` is the id of the lease's claim. */
export type ToWorker =
  | {
      readonly type: 'start'
      readonly slot: Slot
      readonly ref: Required<LeaseRef>
      readonly ttlMs: number
      readonly start: RenewerStart
      readonly maxHoldMs: number
    }
  | RenewRequest
  | { readonly type: 'end'; readonly id: string }

export interface RenewRequest {
  readonly type: 'renew'
  readonly id: string
  readonly call: number
  readonly ttlMs: number
  readonly mode: RenewMode | 'confirm'
}

export type FromWorker =
  | RenewAnswerMessage
  /** All code has been loaded, and the driver is open. */
  | { readonly type: 'opened' }
  /** `unansweredMs`: the shortest TTL that was sent and never answered. Undefined: the lease was lost before. */
  | { readonly type: 'ended'; readonly id: string; readonly unansweredMs: number | undefined }
  | { readonly type: 'renewed'; readonly id: string; readonly tookMs: number }
  | { readonly type: 'lost'; readonly id: string; readonly loss: Loss }
  | { readonly type: 'renewal failed'; readonly id: string; readonly error: string }

/** The answer to the `RenewRequest` with the same `call`. */
interface RenewAnswerMessage extends RenewAnswer {
  readonly type: 'renew answer'
  readonly call: number
}

export interface RenewAnswer {
  readonly renewed: boolean
  readonly error?: string
}
