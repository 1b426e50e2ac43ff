/** The times of all scenes. They are long for a busy machine: most of a run is waiting, and many run at once. */
export const TTL_MS = 1_200
/** `callTimeoutSeconds` of every client. */
export const CALL_MS = 600
/** `waiterTtlSeconds` of every client. */
export const WAITER_MS = 1_800
/** How long a claim waits. Enough for a lease and a dead waiter to expire, and for several tries after that. */
export const WAIT_MS = 6_000
/** A connection that has lost messages is reset after this time. */
export const LOST_FOR_MS = 1_600
/** A message that is held back until another client is granted a lease, or reconnects, goes on after this time. */
export const HELD_BACK_FOR_MS = 5_000
/** What a call may take on a busy machine beyond its own bounds. */
export const SLACK_MS = 4_000
/** A claim that is refused at its end must not have seen the lock free for longer than this. */
export const FREE_FOR_MS = 4_000

export const seconds = (ms: number): number => ms / 1_000
