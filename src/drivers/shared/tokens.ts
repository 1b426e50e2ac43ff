/**
 * The next fencing token: above the last one, and never below the clock in microseconds. So tokens rise after a store
 * has lost its data, as long as its clock was not set back at the same time. `protocol/vectors/tokens.json` has
 * examples. The copies in `leases.lua` and in SQLite's `next_token` are checked against them.
 */
export const tokenAfter = (lastToken: number, nowUs: number): number => Math.max(lastToken + 1, Math.floor(nowUs))
