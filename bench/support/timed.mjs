// @ts-check
import { quantile } from './statistics.mjs'

/**
 * Runs `turn` in so many tasks at once, and measures the time and the CPU of this process for each turn.
 *
 * @param {{ atOnce: number, ms: number, batch?: number }} options `batch` turns are timed together
 * @param {() => Promise<unknown>} turn
 */
export async function timed({ atOnce, ms, batch = 1 }, turn) {
  /** @type {number[]} */
  const times = []
  const cpuBefore = process.cpuUsage()
  const startedMs = performance.now()
  const endMs = startedMs + ms
  const task = async () => {
    for (let beganMs = performance.now(); beganMs < endMs; ) {
      for (let left = batch; left > 0; left -= 1) await turn()
      const now = performance.now()
      times.push(now - beganMs)
      beganMs = now
    }
  }
  await Promise.all(Array.from({ length: atOnce }, task))
  const tookMs = performance.now() - startedMs
  const { user, system } = process.cpuUsage(cpuBefore)
  const count = times.length * batch
  const micros = times.map((each) => (each * 1_000) / batch)
  return {
    count,
    rate: count / (tookMs / 1_000),
    p10: quantile(micros, 0.1),
    p50: quantile(micros, 0.5),
    p99: quantile(micros, 0.99),
    cpu: (user + system) / count,
  }
}
