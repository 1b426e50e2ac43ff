import { trustedUntil } from '../../src/core/lease/deadline.ts'
import * as ballot from '../../src/drivers/redlock/ballot.ts'
import { countYes } from '../../src/drivers/redlock/quorum.ts'
import * as node from './node.ts'

/** Every decision that the model makes is one of these. A mutant replaces one of them. */
export interface Rules {
  readonly begin: typeof ballot.begin
  readonly propose: typeof ballot.propose
  readonly decide: typeof ballot.decide
  readonly conclude: typeof ballot.conclude
  readonly learn: typeof ballot.learn
  readonly countYes: typeof countYes
  /** Until when a client trusts a lease whose request was sent at this time. */
  readonly trustedUntilMs: (sentMs: number, ttlMs: number) => number
  /** Whether a grant that arrives now is taken. */
  readonly isInTime: (deadlineMs: number, nowMs: number) => boolean
  readonly vote: typeof node.vote
  readonly repair: typeof node.repair
  readonly renew: typeof node.renew
  readonly release: typeof node.release
}

/** What the driver and the core use, and what the scripts do. */
export const RULES: Rules = {
  begin: ballot.begin,
  propose: ballot.propose,
  decide: ballot.decide,
  conclude: ballot.conclude,
  learn: ballot.learn,
  countYes,
  trustedUntilMs: (sentMs, ttlMs) => trustedUntil({ monotonicMs: sentMs, wallMs: sentMs }, ttlMs).monotonicMs,
  isInTime: (deadlineMs, nowMs) => nowMs < deadlineMs,
  vote: node.vote,
  repair: node.repair,
  renew: node.renew,
  release: node.release,
}
