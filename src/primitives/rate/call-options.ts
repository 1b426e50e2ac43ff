import { optionNames } from '../../core/options.ts'

export interface ConsumeOptions {
  /**
   * How many units the call takes, all or none. At most the smallest burst.
   *
   * @default 1
   */
  cost?: number
}

export interface RateWaitOptions extends ConsumeOptions {
  /**
   * How long to wait at most.
   *
   * @default 10
   */
  blockingTimeoutSeconds?: number
  /** Ends the wait: the call rejects with an `AbortedError`. */
  signal?: AbortSignal
}

export const CONSUME_OPTIONS = optionNames<ConsumeOptions>({ cost: true })
export const WAIT_OPTIONS = optionNames<RateWaitOptions>({ cost: true, blockingTimeoutSeconds: true, signal: true })
