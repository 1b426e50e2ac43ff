import type { SqliteConnection } from './connection.ts'

/** Deletes ended rows now and then. Only disk space depends on it. */
export function sweeper(connection: SqliteConnection): (nowMs: number) => void {
  let lastMs = 0
  return (nowMs) => {
    // In both directions, because the clock may have been set.
    if (Math.abs(nowMs - lastMs) < SWEEP_EVERY_MS) return
    const swept = SWEEPS.map((sweep) => connection.run(sweep, nowMs, MAX_SWEPT))
    if (swept.every((count) => count < MAX_SWEPT)) lastMs = nowMs
  }
}

const SWEEPS = ['sweep_leases', 'sweep_waiters', 'sweep_rates'] as const
const SWEEP_EVERY_MS = 1_000
/** Per transaction, because other processes wait for it. */
const MAX_SWEPT = 200
