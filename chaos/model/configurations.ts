import type { Bounds } from './bounds.ts'

/** One proposal of each client, and nothing that fails but the network. */
export const SMALLEST: Bounds = {
  ttlTicks: 1,
  ticks: 0,
  proposals: [1, 1],
  renewals: [0, 0],
  repairs: false,
  restarts: 0,
  failovers: 0,
  clocksMs: [],
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
  configuration('a failover, and repairs', { ticks: 1, renewals: [1, 0], repairs: true, failovers: 1 }),
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
  configuration('renewal, expiry', { ttlTicks: 2, ticks: 2, renewals: [1, 1] }),
  configuration('failover, grace period, a clock that falls behind', { ticks: 2, failovers: 1, drifts: true }),
  configuration('failover, second proposals', { ticks: 1, proposals: [2, 1], failovers: 1 }),
  configuration('failover with a wrong clock', { ticks: 2, failovers: 1, clocksMs: [-200, 200] }),
  configuration('two failovers', { ticks: 1, failovers: 2 }),
  configuration('repairs, expiry', { ttlTicks: 2, ticks: 2, renewals: [1, 1], repairs: true }),
  configuration('repairs, second proposals', {
    ticks: 1,
    proposals: [2, 1],
    renewals: [1, 0],
    repairs: true,
    clientsAheadMs: [0, 200],
  }),
  configuration('repairs, restart', { ttlTicks: 2, ticks: 2, renewals: [2, 0], repairs: true, restarts: 1 }),
  configuration('repairs, failover', { ttlTicks: 2, ticks: 2, renewals: [2, 0], repairs: true, failovers: 1 }),
  configuration('repairs, failover with a wrong clock', {
    ticks: 1,
    renewals: [1, 0],
    repairs: true,
    failovers: 1,
    clocksMs: [-200, 200],
  }),
]
