// @ts-check
import { interleave, warmUp } from '../support/rounds.mjs'
import { leave } from '../support/stage.mjs'
import { figureOf } from '../support/table.mjs'
import { callsOf, compete, handOffs } from './hand-offs.mjs'

/** @import { Entry, Plot, Row, Scenario } from '../types.d.ts' */

const PROCESSES = [1, 2, 4, 8, 16, 32, 64]

const COLUMNS = [
  { key: 'rate', title: 'hand-offs/s', digits: 0 },
  { key: 'cpu', title: 'CPU µs', digits: 0 },
  { key: 'serverCpu', title: 'server CPU µs', digits: 0 },
  { key: 'calls', title: 'commands or transactions', digits: 1 },
  { key: 'unfair', title: 'most ÷ least of a process', digits: 2 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'growth-processes',
  title: 'the cost of a hand-off between 1 to 64 processes',
  drivers: ['redis', 'postgres', 'advisory', 'sqlite'],
  quickDrivers: ['redis', 'postgres'],
  async run(stage) {
    const { quick } = stage.settings
    /** @type {Map<string, [number, number][]>} */
    const lines = new Map()
    try {
      for (const driver of stage.drivers(scenario)) {
        for (const processes of quick ? PROCESSES.slice(0, 5) : PROCESSES) {
          /** @param {Entry} entry */
          const only = ({ kind }) => kind !== 'peer' && kind !== 'variant'
          const players = await stage.enter({ does: 'hold', driver, scenario: 'hand-offs', processes, only })
          /** @type {Row[]} */
          let rows = []
          try {
            for (const player of players) {
              await player.call('prime')
              await warmUp(player, 300, compete)
            }
            const calls = await callsOf(stage, driver, players, 1_000)
            rows = await interleave(players, stage.rounds({ quick: 2, full: 3 }), async (player) => ({
              ...(await handOffs(stage, player, quick ? 300 : 1_500)),
              calls: calls.get(player) ?? Number.NaN,
            }))
          } finally {
            await leave(players)
          }
          const title = `${processes} processes hold one name for 1 ms each, ${driver}`
          const main = /** @type {const} */ ({ key: 'rate', better: 'more' })
          const id = `growth-processes/${driver}/${processes}`
          stage.addTable({ id, title, regime: undefined, columns: COLUMNS, main, rows })
          for (const row of rows) addPoint(lines, `${driver}, ${row.title}`, [processes, cpuOf(row)])
        }
      }
    } finally {
      // What was measured before a failure is drawn, too.
      /** @type {Plot} */
      const plot = {
        id: 'processes',
        title: 'Processes on one name',
        x: 'processes',
        y: 'CPU µs of a hand-off',
        lines: [...lines].map(([title, points]) => ({ title, points })),
      }
      stage.addPlot(plot)
    }
  },
}

/** @param {Row} row */
const cpuOf = (row) => figureOf(row, 'cpu') + figureOf(row, 'serverCpu')

/**
 * @param {Map<string, [number, number][]>} lines
 * @param {string} title
 * @param {[number, number]} point
 */
function addPoint(lines, title, point) {
  lines.set(title, [...(lines.get(title) ?? []), point])
}
