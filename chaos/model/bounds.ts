/** What a run of the model explores. Times are in ms. Every event happens at a whole tick of the true time. */
export interface Bounds {
  /**
   * The time to live of all leases. It is also the longest one: the worst case for a node that has forgotten leases.
   */
  readonly ttlTicks: number
  readonly ticks: number
  /** Of each client, in all its calls and their rounds. */
  readonly proposals: readonly [number, number]
  /** Of each lease of each client. */
  readonly renewals: readonly [number, number]
  /** Whether a lease that was renewed is proposed again to the nodes that lack it. */
  readonly repairs: boolean
  /** How often a node restarts without its data. */
  readonly restarts: number
  /** How often a node goes on as another server, with the data that it had at some earlier time. */
  readonly failovers: number
  /** How far ahead the clock of such a server may be at first, apart from the one that is right. */
  readonly clocksMs: readonly number[]
  /** How far the clock of each client is ahead. */
  readonly clientsAheadMs: readonly [number, number]
  readonly nodesAheadMs: readonly [number, number, number]
  /** Whether the clock of one client falls behind by as much as the margin of a lease allows. */
  readonly drifts: boolean
  /** Whether calls are withdrawn, or made again before they have an answer. */
  readonly withdraws: boolean
  /** Whether messages that cannot matter any more are dropped. It makes the model smaller, not weaker. */
  readonly simplifies: boolean
}

/** What follows from the time to live, as in the driver. */
export interface Times {
  readonly ttlMs: number
  readonly longestMs: number
  /** A quarter of the longest time to live. */
  readonly maxAheadUs: number
  /** 1 % of a lease: the margin covers it. */
  readonly driftMs: number
}

export function timesOf({ ttlTicks }: Bounds): Times {
  const ttlMs = ttlTicks * TICK_MS
  return { ttlMs, longestMs: ttlMs, maxAheadUs: (ttlMs * 1_000) / 4, driftMs: ttlMs / 100 }
}

export const NODES = 3
/** Of the first, second, … server that a node has been. */
export const runIdOf = (runs: number): string => `run${runs}`
export const TICK_MS = 1_000
export const START_MS = 1_000_000
export const timeOf = (tick: number): number => START_MS + tick * TICK_MS
