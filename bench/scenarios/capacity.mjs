// @ts-check
import { setTimeout as sleep } from 'node:timers/promises'
import { namesOf } from '../support/names.mjs'
import { leave } from '../support/stage.mjs'
import { figureOf } from '../support/table.mjs'

/** @import { Contestant, DriverName, Figures, Player, Row, Scenario, Stage } from '../types.d.ts' */

const TTL_MS = 6_000
/** Each process renews its leases this often. */
const RENEWALS_A_TTL = 3
const LEASES = 200
const PAIRS_A_SECOND = 20
const PROCESSES = [1, 8, 24, 48]

const COLUMNS = [
  { key: 'processes', title: 'processes', digits: 0 },
  { key: 'pairs', title: 'pairs/s', digits: 0 },
  { key: 'renewals', title: 'renewals/s', digits: 0 },
  { key: 'serverMs', title: 'server CPU ms/s', digits: 1 },
  { key: 'modelMs', title: 'by the model', digits: 1 },
  { key: 'ratio', title: 'measured ÷ model', digits: 2 },
  { key: 'connections', title: 'connections', digits: 0 },
]

/**
 * Checks the capacity model of docs/performance.md. The cost of a pair and of a renewal is measured with one process
 * that does only this. From the two, the model predicts what many processes that do both cost the server.
 *
 * @type {Scenario}
 */
export const scenario = {
  id: 'capacity',
  title: 'the cost to the server of 1 to 48 processes, each with leases and a few pairs a second',
  drivers: ['redis', 'postgres'],
  async run(stage) {
    const ms = stage.settings.quick ? 2_000 : 2 * TTL_MS
    for (const driver of stage.drivers(scenario)) {
      const onlyPairs = await measured(stage, driver, { processes: 1, leases: 0, pairs: 10 * PAIRS_A_SECOND, ms })
      const onlyLeases = await measured(stage, driver, { processes: 1, leases: 10 * LEASES, pairs: 0, ms })
      const pairMs = figureOf(onlyPairs, 'serverMs') / figureOf(onlyPairs, 'pairs')
      const renewalMs = figureOf(onlyLeases, 'serverMs') / figureOf(onlyLeases, 'renewals')
      /** @type {Row[]} */
      const rows = [
        { ...onlyPairs, title: `only pairs: ${(pairMs * 1_000).toFixed(0)} µs each` },
        { ...onlyLeases, title: `only leases: ${(renewalMs * 1_000).toFixed(1)} µs for a renewal` },
      ]
      for (const processes of stage.settings.quick ? PROCESSES.slice(0, 2) : PROCESSES) {
        const row = await measured(stage, driver, { processes, leases: LEASES, pairs: PAIRS_A_SECOND, ms })
        rows.push({
          ...row,
          rounds: row.rounds.map((figures) => ({ ...figures, ...model(figures, pairMs, renewalMs) })),
        })
      }
      const each = `${LEASES} leases (TTL ${TTL_MS / 1_000} s) and ${PAIRS_A_SECOND} pairs/s`
      const title = `processes with ${each} each, ${driver}`
      const main = /** @type {const} */ ({ key: 'serverMs', better: 'less' })
      stage.addTable({ id: `capacity/${driver}/mixed`, title, regime: undefined, columns: COLUMNS, main, rows })
    }
  },
}

/**
 * @param {Figures} figures
 * @param {number} pairMs
 * @param {number} renewalMs
 * @returns {Figures}
 */
function model({ pairs = 0, renewals = 0, serverMs = 0 }, pairMs, renewalMs) {
  const modelMs = pairs * pairMs + renewals * renewalMs
  return { modelMs, ratio: serverMs / modelMs }
}

/**
 * @param {Stage} stage
 * @param {DriverName} driver
 * @param {{ processes: number, leases: number, pairs: number, ms: number }} load
 * @returns {Promise<Row>}
 */
async function measured(stage, driver, { processes, leases, pairs, ms }) {
  const only = (/** @type {{ kind: string }} */ { kind }) => kind === 'holdfast'
  const players = await stage.enter({ does: 'keep', driver, scenario: 'capacity', processes, only })
  const player = /** @type {Player} */ (players[0])
  try {
    await player.callAll('keep', { leases })
    await player.callAll('work', { pairs, ms: 1_000 })
    const before = stage.serverCpu(driver)
    const done = await player.callAll('work', { pairs, ms })
    const seconds = ms / 1_000
    const figures = {
      processes,
      pairs: done.reduce((sum, { count = 0 }) => sum + count, 0) / seconds,
      renewals: (processes * leases * RENEWALS_A_TTL) / (TTL_MS / 1_000),
      serverMs: (stage.serverCpu(driver) - before) / 1_000 / seconds,
      connections: await stage.connections(driver),
    }
    return { title: `${processes}`, kind: 'holdfast', rounds: [figures] }
  } finally {
    await leave(players)
  }
}

export const work = {
  /**
   * @param {Contestant} contestant
   * @param {{ leases: number }} args
   * @param {string} prefix
   */
  async keep({ keep }, { leases }, prefix) {
    if (keep === undefined) throw new Error('no keep')
    const lost = () => {
      throw new Error('a lease was lost')
    }
    const names = Array.from({ length: leases }, (_, index) => `${prefix}:${process.pid}:${index}`)
    await Promise.all(names.map((name) => keep(name, TTL_MS, lost)))
  },

  /**
   * Acquires and releases so many locks a second, at even distances.
   *
   * @param {Contestant} contestant
   * @param {{ pairs: number, ms: number }} args
   * @param {string} prefix
   */
  async work({ pair }, { pairs, ms }, prefix) {
    if (pair === undefined) throw new Error('no pair')
    const next = namesOf(`${prefix}:${process.pid}:pairs`)
    const startedMs = performance.now()
    let count = 0
    for (; pairs > 0 && count < (pairs * ms) / 1_000; count += 1) {
      await sleep(Math.max(0, startedMs + (count * 1_000) / pairs - performance.now()))
      await pair(next())
    }
    await sleep(Math.max(0, startedMs + ms - performance.now()))
    return { count }
  },
}
