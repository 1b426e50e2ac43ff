import type { LockInfo } from '../../core/lock-info.ts'
import type { OpenTelemetryApi, OpenTelemetrySpan, OpenTelemetrySpanContext } from './api.ts'

/** A lease that this process holds, with the span of its function or, until that runs, of its acquisition. */
export interface TracedLease {
  readonly lockName: string
  readonly holderId: string
  readonly fencingToken: number
  spanContext: OpenTelemetrySpanContext
  /** The span of the function that runs under the lease. */
  running?: OpenTelemetrySpan
}

/** The spans of the leases that this process holds, so that the span of a waiter can link to the one it waits for. */
export class LeaseSpans {
  readonly #byClaim = new Map<string, TracedLease>()
  readonly #byHolder = new Map<string, TracedLease>()

  add(claimId: string, lease: TracedLease): void {
    this.remove(claimId)
    this.#byClaim.set(claimId, lease)
    this.#byHolder.set(keyOf(lease), lease)
  }

  get(claimId: string): TracedLease | undefined {
    return this.#byClaim.get(claimId)
  }

  remove(claimId: string): void {
    const lease = this.#byClaim.get(claimId)
    if (lease === undefined) return
    this.#byClaim.delete(claimId)
    this.#byHolder.delete(keyOf(lease))
  }

  clear(): void {
    this.#byClaim.clear()
    this.#byHolder.clear()
  }

  /**
   * The span of a holder, if it is in this process, or if it has put its `traceparent` into the lease's metadata. Read
   * `spanContext` when the wait is over: the function may begin only after its lock was found held.
   */
  spanOf(holder: LockInfo): { readonly spanContext: OpenTelemetrySpanContext } | undefined {
    return this.#byHolder.get(keyOf(holder)) ?? parseTraceparent(holder.metadata?.['traceparent'])
  }
}

const keyOf = ({ lockName, holderId, fencingToken }: Pick<TracedLease, 'lockName' | 'holderId' | 'fencingToken'>) =>
  `${fencingToken}\0${holderId}\0${lockName}`

/**
 * The active span in the form of W3C Trace Context, for the `metadata` of a claim: `{ metadata: traceMetadata(api) }`.
 * A process that has to wait for the lease then links its span to this one. Everyone who can read the store sees the
 * ids. Empty if no span is active.
 *
 * @example
 * ```ts
 * await lock.withLock('report', writeReport, { metadata: { ...traceMetadata(api), job: 'nightly' } })
 * ```
 */
export function traceMetadata(api: Pick<OpenTelemetryApi, 'trace' | 'context'>): { traceparent?: string } {
  const context = api.trace.getSpan(api.context.active())?.spanContext()
  if (context === undefined || !api.trace.isSpanContextValid(context)) return {}
  const { traceId, spanId, traceFlags } = context
  return { traceparent: `00-${traceId}-${spanId}-${(traceFlags & 0xff).toString(16).padStart(2, '0')}` }
}

/** Others write into the store, so anything else than a complete and valid text counts as none. */
function parseTraceparent(text: unknown): { readonly spanContext: OpenTelemetrySpanContext } | undefined {
  const [, traceId, spanId, flags = ''] =
    (typeof text === 'string' && /^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/.exec(text)) || []
  if (traceId === undefined || spanId === undefined || /^0+$/.test(traceId) || /^0+$/.test(spanId)) return undefined
  return { spanContext: { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true } }
}
