// @ts-check
import { namesOf } from '../support/names.mjs'
import { inRegimes, interleave, withServerCpu } from '../support/rounds.mjs'
import { leave } from '../support/stage.mjs'
import { timed } from '../support/timed.mjs'

/** @import { Contestant, DriverName, Row, Scenario, Stage } from '../types.d.ts' */

const AT_ONCE = [1, 64, 512]

const COLUMNS = [
  { key: 'rate', title: 'pairs/s', digits: 0 },
  { key: 'p10', title: 'p10 µs', digits: 0 },
  { key: 'p50', title: 'p50 µs', digits: 0 },
  { key: 'p99', title: 'p99 µs', digits: 0 },
  { key: 'cpu', title: 'CPU µs', digits: 1 },
  { key: 'serverCpu', title: 'server CPU µs', digits: 1 },
  { key: 'bytes', title: 'bytes', digits: 0 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'acquire',
  title: 'acquire and release, distinct names',
  drivers: ['redis', 'node-redis', 'postgres', 'advisory', 'sqlite', 'memory', 'redlock'],
  quickDrivers: ['redis', 'postgres', 'advisory', 'memory', 'redlock'],
  async run(stage) {
    for (const driver of stage.drivers(scenario)) {
      const bytes = await allocations(stage, driver)
      const enter = /** @type {const} */ ({ does: 'pair', driver, scenario: 'acquire' })
      const batch = batchOf(driver)
      await inRegimes(
        stage,
        enter,
        async (players, { regime, sliceMs, rounds }) => {
          for (const atOnce of AT_ONCE) {
            const able = players.filter(({ entry }) => (entry.maxAtOnce ?? atOnce) >= atOnce)
            const measured = await interleave(able, rounds, (player) =>
              withServerCpu(stage, driver, () => player.call('slice', { atOnce, ms: sliceMs, batch })),
            )
            const rows = measured.map((row) => withBytes(row, bytes.get(`${row.title}/${atOnce}`)))
            const title = `acquire + release, ${driver}, ${atOnce} at once`
            const main =
              atOnce === 1
                ? { key: 'p50', better: /** @type {const} */ ('less') }
                : { key: 'rate', better: /** @type {const} */ ('more') }
            stage.addTable({ id: `acquire/${driver}/${atOnce}`, title, regime, columns: COLUMNS, main, rows })
          }
        },
        async (player, ms) => {
          for (const atOnce of [1, 64]) await player.call('slice', { atOnce, ms: ms / 2, batch })
        },
      )
    }
  },
}

/** @typedef {{ atOnce: number, ms: number, batch: number }} Slice */

export const work = {
  /**
   * @param {Contestant} contestant
   * @param {Slice} slice
   * @param {string} prefix
   */
  async slice({ pair }, { atOnce, ms, batch }, prefix) {
    if (pair === undefined) throw new Error('no pair')
    const next = namesOf(prefix)
    return timed({ atOnce, ms, batch }, () => pair(next()))
  },

  /**
   * What the pairs allocate on the heap. The process has a young generation so large that nothing is collected.
   *
   * @param {Contestant} contestant
   * @param {{ atOnce: number, pairs: number }} args
   * @param {string} prefix
   */
  async allocated({ pair }, { atOnce, pairs }, prefix) {
    if (pair === undefined) throw new Error('no pair')
    const next = namesOf(prefix)
    /** @param {number} count */
    const run = (count) =>
      Promise.all(
        Array.from({ length: atOnce }, async () => {
          for (let left = count / atOnce; left > 0; left -= 1) await pair(next())
        }),
      )
    await run(pairs)
    globalThis.gc?.()
    const before = process.memoryUsage().heapUsed
    await run(pairs)
    return { bytes: (process.memoryUsage().heapUsed - before) / pairs }
  },
}

/**
 * Measured in processes of their own, because a large young generation changes the times.
 *
 * @param {Stage} stage
 * @param {DriverName} driver
 * @returns {Promise<Map<string, number>>} by title and concurrency
 */
async function allocations(stage, driver) {
  const bytes = new Map()
  if (stage.settings.quick) return bytes
  const nodeOptions = ['--expose-gc', '--min-semi-space-size=256', '--max-semi-space-size=256']
  const players = await stage.enter({ does: 'pair', driver, scenario: 'acquire', nodeOptions })
  try {
    for (const atOnce of AT_ONCE) {
      for (const player of players) {
        if ((player.entry.maxAtOnce ?? atOnce) < atOnce) continue
        const pairs = player.entry.maxAtOnce === undefined ? 2_048 : 128
        const found = await player.call('allocated', { atOnce, pairs })
        bytes.set(`${player.entry.title}/${atOnce}`, found['bytes'])
      }
    }
  } finally {
    await leave(players)
  }
  return bytes
}

/**
 * @param {Row} row
 * @param {number | undefined} bytes
 * @returns {Row}
 */
const withBytes = (row, bytes = Number.NaN) => ({ ...row, rounds: row.rounds.map((each) => ({ ...each, bytes })) })

/**
 * Without a store a pair takes about as long as reading the clock, so the clock is read less often.
 *
 * @param {DriverName} driver
 */
const batchOf = (driver) => (driver === 'memory' ? 32 : 1)
