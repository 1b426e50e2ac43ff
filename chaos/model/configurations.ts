import type { Bounds } from './bounds.ts'

/** One proposal of each client, and nothing that fails but the network. */
export const SMALLEST: Bounds = {
  ttlTicks: 1,
  ticks: 0,
  proposals: [1, 1],
  renewals: 0,
  restarts: 0,
  clientsAheadMs: [0, 0],
  nodesAheadMs: [0, 0, 0],
  drifts: false,
  withdraws: false,
  simplifies: true,
}

export interface Configuration {
  readonly name: string
  readonly bounds: Bounds
}

const configuration = (name: string, bounds: Partial<Bounds>): Configuration => ({
  name,
  bounds: { ...SMALLEST, ...bounds },
})

/** What `npm test` explores. */
export const SHORT: readonly Configuration[] = [
  configuration('expiry, withdrawn calls and a clock that falls behind', { ticks: 1, drifts: true, withdraws: true }),
  configuration('a restart', { ticks: 1, restarts: 1 }),
]

/**
 * What `npm run model` explores. One time to live is one tick, or two where leases are renewed: with one, a renewal
 * within the same tick changes nothing.
 */
export const WHOLE: readonly Configuration[] = [
  configuration('two proposals each, expiry', { ticks: 1, proposals: [2, 2] }),
  configuration('two proposals each, client A ahead', { proposals: [2, 2], withdraws: true, clientsAheadMs: [200, 0] }),
  configuration('client A too far ahead', { ticks: 1, proposals: [2, 1], withdraws: true, clientsAheadMs: [1_500, 0] }),
  configuration('restart, grace period, a clock that falls behind', { ticks: 2, restarts: 1, drifts: true }),
  configuration('restart, second proposals', { ticks: 1, proposals: [2, 1], restarts: 1 }),
  configuration('restart, client B behind', { ticks: 2, restarts: 1, clientsAheadMs: [0, -1_500] }),
  configuration('restart, node 3 ahead', {
    ticks: 1,
    restarts: 1,
    nodesAheadMs: [0, 0, 200],
    clientsAheadMs: [200, 0],
  }),
  configuration('renewal, expiry', { ttlTicks: 2, ticks: 2, renewals: 1 }),
]
