import type { DemotionReason, Term } from './term.ts'

export interface CampaignOptions<Value = unknown> {
  /**
   * What others see of the leader, such as an address or a version. JSON of at most 16,368 bytes. Needs a driver that
   * keeps metadata.
   */
  value?: Value
  /** Ends the campaign: it rejects with an `AbortedError`. It does not end a term that has begun. */
  signal?: AbortSignal
  /**
   * How long to campaign. 0 asks once.
   *
   * @default no limit
   */
  blockingTimeoutSeconds?: number
  /**
   * The heartbeat stops renewing after this time, so that a leader that hangs does not lead forever.
   *
   * @default no limit
   */
  maxTermSeconds?: number
  /**
   * Called exactly once per term, in the step in which it ends: before the resignation is sent, or no later than the
   * deadline of the lease. So it runs before another candidate can be elected. (A blocked event loop delays it; `held`
   * is correct even then.) It should only stop things. If it throws, that is a warning, as for an event listener.
   */
  onDemoted?: (term: Term<Value>, reason: DemotionReason) => void
}
