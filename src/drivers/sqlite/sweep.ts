import type { SqliteConnection } from './connection.ts'

/** Deletes what has ended, now and then: nothing but space depends on it. */
export function sweeper(connection: SqliteConnection): (nowMs: number) => void {
  let lastMs = 0
  return (nowMs) => {
    // Either way: the clock may have been set.
    if (Math.abs(nowMs - lastMs) < SWEEP_EVERY_MS) return
    const swept = SWEEPS.map((sweep) => connection.run(sweep, nowMs, MAX_SWEPT))
    if (swept.every((count) => count < MAX_SWEPT)) lastMs = nowMs
  }
}

const SWEEPS = ['sweep_leases', 'sweep_waiters', 'sweep_rates'] as const
const SWEEP_EVERY_MS = 1_000
/** In one transaction: others wait for it. */
const MAX_SWEPT = 200
