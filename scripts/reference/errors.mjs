// @ts-check
// What a caller does about each error. The classes, codes and fields come from the declarations; this does not.

/** @type {Record<string, string>} by code */
export const remedies = {
  INVALID_ARGUMENT:
    'Fix the call. `argument`, `value` and `rule` say what is wrong with it. Nothing was sent to the store.',
  NOT_ACQUIRED:
    'Skip the work, or try later: another holder does it. To wait instead, pass `blocking: true`. To get an answer ' +
    'instead of an error, call `acquire`.',
  LEASE_LOST:
    'Stop. Treat the last steps of the work as possibly run beside another holder. Start again with a new claim, and ' +
    'check the state of the work first. Where that is not enough, use [fencing](../explanation/fencing.md).',
  NOT_HELD: 'Fix the order of the calls: your own code released the lease, or handed it over, before this call.',
  STORE_UNAVAILABLE:
    'Do not treat the lock as free or as held: it is unknown. If `retryable` is true, try again, or let the caller ' +
    'try again. If it is false, fix what the message names: a password, a database, missing tables, a right.',
  ABORTED: 'Nothing, if you aborted the signal. `cause` is the reason that the signal was aborted with.',
  CLOSED: 'Stop using this instance. During a shutdown, let the error end the task.',
  UNSUPPORTED:
    'Choose a driver that can do it: see [the table](../drivers/README.md). The message says why this one cannot.',
  MISSING_CLIENT: 'Run the command in the message, or pass a driver made from a client that you have.',
  OVERLOADED:
    'Start less at once, or wait until work that is in flight has ended. Nothing was done. The bounds are ' +
    '[listed](bounds.md).',
  STALE_TOKEN:
    'Stop, and do not retry with this lease: it is over, and a later holder has been at the resource. The write was ' +
    'refused.',
  RATE_LIMITED: 'Wait for `retryAfterSeconds`, or refuse the request. No units were taken.',
  DEADLOCK:
    'Let go of the locks that this task holds (an error that leaves a `with…` callback does that), then try again. ' +
    'To avoid deadlocks, take locks together with `withLocks`, or always in the same order.',
  RESULT_NOT_KEPT:
    'Return less from the job: JSON, at most 16,368 bytes. The job itself is done and does not run again in its ' +
    'period.',
}
