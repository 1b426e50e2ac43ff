import { eitherSignal } from '../../core/time/abort.ts'
import type { FoundResult } from './results.ts'

/**
 * The calls of one instance that wait for a run. All of them get a result as soon as one has found it. Otherwise each
 * would take the lease in turn, only to find the same result.
 */
export class WaitingCalls {
  readonly #calls = new Map<string, Set<WaitingCall>>()

  /** Resolves with what `acquire` resolves with, or with the result that another call has found meanwhile. */
  async wait<Turn>(
    { key, beganMs }: Called,
    signal: AbortSignal | undefined,
    acquire: (signal: AbortSignal) => Promise<Turn>,
  ): Promise<Turn | FoundResult> {
    const calls = this.#calls.get(key) ?? new Set()
    const call: WaitingCall = { beganMs, stop: new AbortController(), result: undefined }
    this.#calls.set(key, calls.add(call))
    using either = signal && eitherSignal(signal, call.stop.signal)
    try {
      return await acquire(either?.signal ?? call.stop.signal)
    } catch (error) {
      if (call.result === undefined || signal?.aborted) throw error
      return call.result
    } finally {
      calls.delete(call)
      if (calls.size === 0) this.#calls.delete(key)
    }
  }

  /**
   * Ends the waits for the key with this result. Calls that began after the store was asked go on waiting: the answer
   * may be late, and the result's period may have been over when they began.
   */
  found(key: string, result: FoundResult): void {
    for (const call of this.#calls.get(key) ?? []) {
      if (call.beganMs > result.askedMs) continue
      call.result = result
      call.stop.abort()
    }
  }
}

export interface Called {
  readonly key: string
  /** On the monotonic clock. */
  readonly beganMs: number
}

interface WaitingCall extends Pick<Called, 'beganMs'> {
  readonly stop: AbortController
  result: FoundResult | undefined
}
