/** Every queue, list, retry and message has a bound, and this is where it is stated. */

/** A lock name fits `VARCHAR(255)`. */
export const MAX_NAME_LENGTH = 255
export const MAX_HOLDER_ID_LENGTH = 255
export const MAX_METADATA_BYTES = 16_384
export const MAX_METADATA_DEPTH = 32

/** Below this, a timer's and the garbage collector's own delays are as long as the lease. */
export const MIN_TTL_MS = 50
/** One year: a lock that is meant to last longer is a row in somebody's own table. */
export const MAX_TTL_MS = 365 * 24 * 3_600_000
export const MAX_WAIT_MS = MAX_TTL_MS

/** How many lock names a page of `inspect` may hold. */
export const MAX_PAGE_SIZE = 10_000

/** How many leases and waiters of one lock name an instance's own `inspect` shows; reading stops with the page that reaches it. */
export const MAX_INSPECTED = 10_000

/** How many permits a semaphore can have: far more than there are holders, and small enough to be added up in any store. */
export const MAX_PERMITS = 1_000_000
/** How many requests one call to a driver may carry; what is over goes in a second call at the same moment. */
export const MAX_LIST = 1_000
/** How many limits a rate may have at once: per second, minute, hour and day. */
export const MAX_RATE_LIMITS = 4
/** How many claims of one instance may be under way at once, asking or waiting. */
export const MAX_PENDING_CLAIMS = 100_000
/** How many leases that were to be restored, and whose store did not answer, an instance remembers. */
export const MAX_UNANSWERED_RESTORES = 10_000
/** How long a call to the store may take before it counts as unanswered, if not said otherwise. */
export const CALL_TIMEOUT_MS = 5_000
/** How long the lock of a `ping` lasts whose release did not arrive. */
export const PING_TTL_MS = 5_000
/** How long closing an instance may take, whatever the store does, if not said otherwise. */
export const CLOSE_TIMEOUT_MS = 5_000
/** How long a dead waiter can delay those behind it, if not said otherwise. */
export const WAITER_TTL_MS = 10_000
/** After how long a claim that waits looks for a deadlock, if not said otherwise. */
export const DEADLOCK_AFTER_MS = 1_000
/** How many questions a look for deadlocks asks, and how many leases and waiters it keeps of the answers. */
export const DEADLOCK_QUESTIONS = 500
export const DEADLOCK_RECORDS = 10_000
/** How deep locks may be nested for a look to tell which of them belong together. Each level makes claim ids some 16 characters longer. */
export const MAX_CHAIN_DEPTH = 8
/** How many lock names can be taken at once. */
export const MAX_LOCKS_AT_ONCE = 100
/** How often a withdrawn or failed release is sent before its lease is left to expire. */
export const MAX_RELEASE_TRIES = 6
/** The longest that a clock step or a suspended machine goes unnoticed while leases are held. */
export const MAX_NAP_MS = 1_000
/** The longest that answers of a local store keep timers and sockets from being served. */
export const MAX_TURN_MS = 10
/** How long a blocked main thread is covered by a heartbeat in a worker thread, if not said otherwise. */
export const STALLED_AFTER_MS = 30_000
