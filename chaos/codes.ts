/** The codes of all errors that the documentation names. A call may fail with nothing else. */
export const CODES: ReadonlySet<string> = new Set([
  ...['INVALID_ARGUMENT', 'NOT_ACQUIRED', 'LEASE_LOST', 'NOT_HELD', 'STORE_UNAVAILABLE', 'ABORTED', 'CLOSED'],
  ...['UNSUPPORTED', 'MISSING_CLIENT', 'OVERLOADED', 'STALE_TOKEN', 'RATE_LIMITED', 'DEADLOCK', 'RESULT_NOT_KEPT'],
])
