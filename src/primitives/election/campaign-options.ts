import type { DemotionReason, Term } from './term.ts'

export interface CampaignOptions<Value = unknown> {
  /** What others see of the leader: an address, a version. JSON, at most 16 KiB with its wrapping. Needs a driver that keeps metadata. */
  value?: Value
  /** Gives up campaigning. It does not end a term that has begun. */
  signal?: AbortSignal
  /** How long to campaign. Without end if not said; 0 answers at once. */
  blockingTimeoutSeconds?: number
  /** The heartbeat stops renewing after this time, so that a leader that hangs does not lead for ever. */
  maxTermSeconds?: number
  /**
   * Called exactly once for each term, in the step in which it ends: before the resignation is sent, or no later than the lease's deadline; so
   * before anybody else can be elected. (A blocked event loop delays it, as it delays everything; `held` is right even then.) It should only stop things:
   * what it throws is a warning, as from an event listener.
   */
  onDemoted?: (term: Term<Value>, reason: DemotionReason) => void
}
