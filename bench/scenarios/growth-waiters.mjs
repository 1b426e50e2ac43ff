// @ts-check
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { leave } from '../support/stage.mjs'

/** @import { Contestant, DriverName, Figures, Player, Plot, Row, Scenario, Stage } from '../types.d.ts' */

const WAITERS = [1, 10, 100, 1_000, 10_000]
const PROCESSES = 2
/** Until so many claims are in the queue. */
const QUEUE_MS = (/** @type {number} */ waiters) => 500 + waiters / 2

const COLUMNS = [
  { key: 'rate', title: 'hand-offs/s', digits: 0 },
  { key: 'cpu', title: 'CPU µs', digits: 0 },
  { key: 'serverCpu', title: 'server CPU µs', digits: 0 },
  { key: 'blockMs', title: 'longest block ms', digits: 0 },
  { key: 'lost', title: 'other leases lost', digits: 0 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'growth-waiters',
  title: 'the cost of a hand-off with 1 to 10,000 waiters',
  drivers: ['redis', 'postgres', 'sqlite', 'advisory'],
  quickDrivers: ['redis', 'postgres'],
  async run(stage) {
    /** @type {Plot['lines'][number][]} */
    const lines = []
    for (const driver of stage.drivers(scenario)) {
      /** @type {Row[]} */
      const rows = []
      for (const waiters of stage.settings.quick ? WAITERS.slice(0, 4) : WAITERS) {
        rows.push({
          title: waiters.toLocaleString('en'),
          kind: 'holdfast',
          rounds: [await point(stage, driver, waiters)],
        })
      }
      const title = `hand-offs between waiters in ${PROCESSES} processes, ${driver}`
      const main = /** @type {const} */ ({ key: 'rate', better: 'more' })
      stage.addTable({ id: `growth-waiters/${driver}/all`, title, regime: undefined, columns: COLUMNS, main, rows })
      // A point at which nothing was handed over has no cost.
      const points = rows.map(({ title, rounds: [round] }) => pointOf(title, round)).filter(([, cost]) => cost > 0)
      lines.push({ title: driver, points })
    }
    stage.addPlot({ id: 'waiters', title: 'Waiters on one name', x: 'waiters', y: 'CPU µs of a hand-off', lines })
  },
}

/** @typedef {{ count: number, cpuMicros: number, blockMs: number, lost: number }} Mark */

/** A lease that is not waited for. A process that is busy with its waiters must still renew it. */
const OTHER_TTL_MS = 5_000

let count = 0
let lost = 0
/** It reads the clock a hundred times a second. */
const loop = monitorEventLoopDelay({ resolution: 10 })
/** @type {() => Promise<unknown> | unknown} */
let unblock = () => {}

export const work = {
  /**
   * Keeps the lock until all are in the queue.
   *
   * @param {Contestant} contestant
   * @param {undefined} _
   * @param {string} prefix
   */
  async block({ hold }, _, prefix) {
    if (hold === undefined) throw new Error('no hold')
    unblock = await hold(prefix)
  },

  /**
   * @param {Contestant} contestant
   * @param {{ tasks: number }} args
   * @param {string} prefix
   */
  async queue({ hold, keep }, { tasks }, prefix) {
    if (hold === undefined) throw new Error('no hold')
    loop.enable()
    await keep?.(`${prefix}:other:${process.pid}`, OTHER_TTL_MS, () => {
      lost += 1
    })
    const task = async () => {
      for (;;) {
        const release = await hold(prefix)
        count += 1
        await release()
      }
    }
    // They end with the process. A task that fails would change the number of waiters.
    for (let left = tasks; left > 0; left -= 1) task().catch((error) => process.stderr.write(`${error}\n`))
  },

  unblock: async () => unblock(),

  /** @returns {Promise<Mark>} */
  async mark() {
    const { user, system } = process.cpuUsage()
    return { count, cpuMicros: user + system, blockMs: loop.max / 1e6, lost }
  },
}

/**
 * New processes for each point, because they leave their waiters behind.
 *
 * @param {Stage} stage
 * @param {DriverName} driver
 * @param {number} waiters
 * @returns {Promise<Figures>}
 */
async function point(stage, driver, waiters) {
  const options = { does: /** @type {const} */ ('wait'), driver, scenario: 'growth-waiters', processes: PROCESSES }
  const players = await stage.enter({ ...options, only: ({ kind }) => kind === 'holdfast' })
  try {
    const player = /** @type {Player} */ (players[0])
    await player.call('block')
    // One more than waiters, because one of them holds the lock.
    const share = Math.ceil((waiters + 1) / PROCESSES)
    await player.call('queue', { tasks: share }, 0)
    await player.call('queue', { tasks: waiters + 1 - share }, 1)
    await sleep(QUEUE_MS(waiters))
    await player.call('unblock')
    await sleep(stage.settings.quick ? 300 : 1_500) // so that the code is compiled
    const [before, serverBefore, startedMs] = [await marks(player), stage.serverCpu(driver), performance.now()]
    await sleep(stage.settings.quick ? 500 : 3_000)
    const [after, serverAfter, seconds] = [
      await marks(player),
      stage.serverCpu(driver),
      (performance.now() - startedMs) / 1_000,
    ]
    const turns = after.count - before.count
    return {
      rate: turns / seconds,
      cpu: (after.cpuMicros - before.cpuMicros) / turns,
      serverCpu: (serverAfter - serverBefore) / turns,
      blockMs: after.blockMs,
      lost: after.lost,
    }
  } finally {
    await leave(players)
  }
}

/** @param {Player} player */
async function marks(player) {
  const all = await player.callAll('mark')
  /** @param {keyof Mark} key */
  const sum = (key) => all.reduce((total, each) => total + (each[key] ?? 0), 0)
  const blockMs = Math.max(...all.map((each) => each['blockMs'] ?? 0))
  return { count: sum('count'), cpuMicros: sum('cpuMicros'), lost: sum('lost'), blockMs }
}

/**
 * @param {string} title
 * @param {Figures} [round]
 * @returns {[number, number]}
 */
const pointOf = (title, round = {}) => [
  Number(title.replaceAll(',', '')),
  (round['cpu'] ?? Number.NaN) + (round['serverCpu'] ?? Number.NaN),
]
