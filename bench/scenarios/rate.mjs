// @ts-check
import { inRegimes, interleave, withServerCpu } from '../support/rounds.mjs'
import { timed } from '../support/timed.mjs'

/** @import { Contestant, Scenario } from '../types.d.ts' */

const AT_ONCE = 64
const KEYS = [1_000, 1]

const COLUMNS = [
  { key: 'rate', title: 'checks/s', digits: 0 },
  { key: 'p50', title: 'p50 µs', digits: 0 },
  { key: 'p99', title: 'p99 µs', digits: 0 },
  { key: 'cpu', title: 'CPU µs', digits: 1 },
  { key: 'serverCpu', title: 'server CPU µs', digits: 1 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'rate',
  title: 'rate limiter, 64 at once',
  drivers: ['redis', 'postgres', 'memory'],
  quickDrivers: ['redis', 'postgres'],
  async run(stage) {
    for (const driver of stage.drivers(scenario)) {
      await inRegimes(
        stage,
        { does: 'consume', driver, scenario: 'rate' },
        async (players, { regime, sliceMs, rounds }) => {
          for (const keys of KEYS) {
            const rows = await interleave(players, rounds, (player) =>
              withServerCpu(stage, driver, () => player.call('slice', { ms: sliceMs, keys })),
            )
            const title = `rate limiter, ${AT_ONCE} at once on ${keys === 1 ? 'one key' : `${keys} keys`}, ${driver}`
            const main = /** @type {const} */ ({ key: 'rate', better: 'more' })
            stage.addTable({ id: `rate/${driver}/${keys}`, title, regime, columns: COLUMNS, main, rows })
          }
        },
        (player, ms) => player.call('slice', { ms, keys: 1_000 }),
      )
    }
  },
}

export const work = {
  /**
   * @param {Contestant} contestant
   * @param {{ ms: number, keys: number }} slice
   * @param {string} prefix
   */
  async slice({ consume }, { ms, keys }, prefix) {
    if (consume === undefined) throw new Error('no consume')
    const names = Array.from({ length: keys }, (_, index) => `${prefix}:${index}`)
    let turn = 0
    return timed({ atOnce: AT_ONCE, ms }, () => {
      turn += 1
      return consume(/** @type {string} */ (names[turn % keys]))
    })
  },
}
