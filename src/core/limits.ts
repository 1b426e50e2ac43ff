/** The limits of queues, lists, retries and messages. docs/reference/bounds.md lists all of them. */

/** Fits `VARCHAR(255)`. */
export const MAX_NAME_LENGTH = 255
export const MAX_HOLDER_ID_LENGTH = 255
export const MAX_METADATA_BYTES = 16_384
export const MAX_METADATA_DEPTH = 32

/** Characters of a message of a server or a client package in an error. */
export const MAX_FOREIGN_MESSAGE = 2_000

/** Below this, the delays of timers and of the garbage collector are as long as the lease. */
export const MIN_TTL_MS = 50
/** One year. A lock that is meant to last longer belongs in a table of the application. */
export const MAX_TTL_MS = 365 * 24 * 3_600_000
export const MAX_WAIT_MS = MAX_TTL_MS

/** Lock names on a page of `inspect`. */
export const MAX_PAGE_SIZE = 10_000

/** Leases and waiters of one lock name in an instance's `inspect`. Reading stops with the page that reaches it. */
export const MAX_INSPECTED = 10_000

/** Permits of a semaphore: far more than there are holders, and small enough to be added up in any store. */
export const MAX_PERMITS = 1_000_000
/** Requests in one call to a driver. Further requests go into a second call at the same time. */
export const MAX_LIST = 1_000
/** Leases that have ended, and whose end the heartbeat thread has not confirmed. Beyond it, no lease moves there. */
export const MAX_ENDING_LEASES = 10_000
/** Commands that a Redis server has not answered. One that has stalled gets no more. */
export const MAX_UNANSWERED_COMMANDS = 256
/** Limits of one rate limiter: per second, minute, hour and day. */
export const MAX_RATE_LIMITS = 4
/** Claims of one instance that wait, and as many requests of it in flight. */
export const MAX_PENDING_CLAIMS = 100_000
/** Restored leases without an answer from the store that the instances on a driver remember. */
export const MAX_UNANSWERED_RESTORES = 10_000
/** Default of `callTimeoutSeconds`: how long a call to the store may take before it counts as unanswered. */
export const CALL_TIMEOUT_MS = 5_000
/** The TTL of the lock that `ping` acquires. It matters only if the release does not arrive. */
export const PING_TTL_MS = 5_000
/** Default timeout of `close`, even if the store does not answer. */
export const CLOSE_TIMEOUT_MS = 5_000
/** Default of `waiterTtlSeconds`: how long a dead waiter can delay those behind it. */
export const WAITER_TTL_MS = 10_000
/** Default time that a nested claim waits before it looks for a deadlock. */
export const DEADLOCK_AFTER_MS = 1_000
/** Requests that one search for deadlocks sends to the store. */
export const MAX_DEADLOCK_REQUESTS = 500
/** Leases and waiters that one search for deadlocks keeps. */
export const MAX_DEADLOCK_RECORDS = 10_000
/** How deep locks can be nested for a deadlock to be found. Each level adds about 16 characters to claim ids. */
export const MAX_CHAIN_DEPTH = 8
/** Lock names of one `withLocks`. */
export const MAX_LOCKS_AT_ONCE = 100
/** How often a failed release is sent before its lease is left to expire. */
export const MAX_RELEASE_TRIES = 6
/** How long a clock step or a suspended machine can go unnoticed while leases are held. */
export const MAX_SLEEP_MS = 1_000
/** How long the answers of a local store can keep timers and sockets from being served. */
export const MAX_TURN_MS = 10
/** Heartbeats that an instance sends in one turn of the event loop. */
export const MAX_RENEWALS_PER_TURN = 512
/** Templates of lock names in metrics. A further one is `other`. Each makes about 130 series at most. */
export const MAX_TEMPLATES = 100
/** The longest time between two renewals by a heartbeat. With a renewal a holder learns of a forced release. */
export const MAX_RENEWAL_PAUSE_MS = 5_000
/** How soon a lease is renewed again because of a message that says it was ended by force. */
export const MIN_HINT_PAUSE_MS = 1_000
/** How long a caller that gives up waits until its place in the queue is withdrawn. */
export const MAX_WITHDRAWAL_MS = 250
/** How long a driver without forced claims may take to end leases by force. It may have to wait for their holders. */
export const FORCE_TIMEOUT_MS = 15_000
/** Default time for which a heartbeat in a worker thread covers a blocked main thread. */
export const STALLED_AFTER_MS = 30_000
