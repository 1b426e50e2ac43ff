// @ts-check
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import pg from 'pg'
import { namesOf } from '../support/names.mjs'
import { interleave, withServerCpu } from '../support/rounds.mjs'
import { leave } from '../support/stage.mjs'
import { figureOf } from '../support/table.mjs'
import { timed } from '../support/timed.mjs'

/** @import { Contestant, DriverName, Plot, Row, Scenario, Stage, Stores } from '../types.d.ts' */

const LEASES = [1, 1_000, 10_000, 100_000, 1_000_000]
const LIST = 500
const AT_ONCE = 64

const COLUMNS = [
  { key: 'rate', title: 'pairs/s', digits: 0 },
  { key: 'p50', title: 'p50 µs', digits: 0 },
  { key: 'cpu', title: 'CPU µs', digits: 1 },
  { key: 'serverCpu', title: 'server CPU µs', digits: 1 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'growth-leases',
  title: 'the cost of a pair with 1 to 1,000,000 leases in the store',
  drivers: ['redis', 'postgres', 'sqlite'],
  quickDrivers: ['redis', 'postgres'],
  async run(stage) {
    /** @type {Plot['lines'][number][]} */
    const lines = []
    for (const driver of stage.drivers(scenario)) {
      const { stores, empty } = await emptyStore(stage, driver)
      /** @type {Row[]} */
      const rows = []
      try {
        let filled = 0
        for (const leases of stage.settings.quick ? LEASES.slice(0, 4) : LEASES) {
          rows.push({ ...(await point(stage, driver, { stores, from: filled, to: leases })), title: `${leases}` })
          filled = leases
        }
      } finally {
        await empty()
      }
      const title = `acquire + release, ${AT_ONCE} at once, by the number of leases in the store, ${driver}`
      const main = /** @type {const} */ ({ key: 'rate', better: 'more' })
      stage.addTable({ id: `growth-leases/${driver}/all`, title, regime: undefined, columns: COLUMNS, main, rows })
      lines.push({
        title: driver,
        points: rows.map((row) => [Number(row.title), figureOf(row, 'cpu') + figureOf(row, 'serverCpu')]),
      })
    }
    stage.addPlot({ id: 'leases', title: 'Leases in the store', x: 'leases', y: 'CPU µs of a pair', lines })
  },
}

export const work = {
  /**
   * @param {Contestant} contestant
   * @param {{ from: number, to: number }} args
   */
  async fill({ fill }, { from, to }) {
    if (fill === undefined) throw new Error('no fill')
    for (let at = from; at < to; at += LIST) {
      await fill(Array.from({ length: Math.min(LIST, to - at) }, (_, index) => `filled:${at + index}`))
    }
  },

  /**
   * @param {Contestant} contestant
   * @param {{ ms: number }} slice
   * @param {string} prefix
   */
  async slice({ pair }, { ms }, prefix) {
    if (pair === undefined) throw new Error('no pair')
    const next = namesOf(prefix)
    return timed({ atOnce: AT_ONCE, ms }, () => pair(next()))
  },
}

/**
 * @param {Stage} stage
 * @param {DriverName} driver
 * @param {{ stores: Partial<Stores>, from: number, to: number }} options
 * @returns {Promise<Row>}
 */
async function point(stage, driver, { stores, from, to }) {
  const enter = { does: /** @type {const} */ ('pair'), driver, scenario: 'growth-leases', stores }
  const players = await stage.enter({ ...enter, only: ({ kind }) => kind === 'holdfast' })
  try {
    // In parts, so that each is answered before a call counts as failed.
    for (let at = from; at < to; at += 50_000) {
      await players[0]?.call('fill', { from: at, to: Math.min(at + 50_000, to) })
    }
    await players[0]?.call('slice', { ms: stage.settings.quick ? 500 : 2_000 })
    const ms = stage.settings.quick ? 300 : 1_000
    const [row] = await interleave(players, stage.rounds({ quick: 3, full: 5 }), (player) =>
      withServerCpu(stage, driver, () => player.call('slice', { ms })),
    )
    return /** @type {Row} */ (row)
  } finally {
    await leave(players)
  }
}

/**
 * A place of its own for the leases, so that the other scenarios do not meet them.
 *
 * @param {Stage} stage
 * @param {DriverName} driver
 * @returns {Promise<{ stores: Partial<Stores>, empty(): Promise<unknown> }>}
 */
async function emptyStore(stage, driver) {
  const { redis, postgres, folder } = await stage.stores(driver)
  if (driver === 'sqlite') return { stores: { folder: mkdtempSync(join(folder, 'growth-')) }, async empty() {} }
  if (driver === 'redis') {
    const client = new Redis(redis)
    return { stores: {}, empty: () => client.flushall().finally(() => client.disconnect()) }
  }
  const client = new pg.Client(postgres)
  await client.connect()
  await client.query('CREATE DATABASE bench_growth')
  const empty = () => client.query('DROP DATABASE bench_growth WITH (FORCE)').finally(() => client.end())
  return { stores: { postgres: postgres.replace(/[^/]+$/, 'bench_growth') }, empty }
}
