// @ts-check
import { setTimeout as sleep } from 'node:timers/promises'
import { inRegimes, interleave, withoutPeersIfQuick, withServerCpu } from '../support/rounds.mjs'

/** @import { Contestant, EnterOptions, Scenario } from '../types.d.ts' */

const TASKS = 100
const HOLD_MS = 1
/** Every task should have several turns. */
const LEAST_MS = 400

const COLUMNS = [
  { key: 'rate', title: 'hand-offs/s', digits: 0 },
  { key: 'cpu', title: 'CPU µs', digits: 0 },
  { key: 'serverCpu', title: 'server CPU µs', digits: 0 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'waiters',
  title: 'one process, 100 waiters',
  drivers: ['memory', 'redis', 'node-redis', 'postgres', 'advisory', 'sqlite', 'redlock'],
  quickDrivers: ['memory', 'redis'],
  async run(stage) {
    for (const driver of stage.drivers(scenario)) {
      /** @type {EnterOptions} */
      const enter = { does: 'wait', driver, scenario: 'waiters', only: withoutPeersIfQuick(stage) }
      /** @param {number} ms */
      const slice = (ms) => ({ ms: Math.max(ms, LEAST_MS), tasks: TASKS, holdMs: HOLD_MS })
      await inRegimes(
        stage,
        enter,
        async (players, { regime, sliceMs, rounds }) => {
          const rows = await interleave(players, rounds, (player) =>
            withServerCpu(stage, driver, () => player.call('slice', slice(sliceMs))),
          )
          const title = `one process, ${TASKS} tasks hold one name for ${HOLD_MS} ms each, ${driver}`
          const main = /** @type {const} */ ({ key: 'rate', better: 'more' })
          stage.addTable({ id: `waiters/${driver}/${TASKS}`, title, regime, columns: COLUMNS, main, rows })
        },
        (player, ms) => player.call('slice', slice(ms)),
      )
    }
  },
}

export const work = {
  /**
   * Only the turns before the end count. The tasks that still wait then get their turn without holding.
   *
   * @param {Contestant} contestant
   * @param {{ ms: number, tasks: number, holdMs: number }} slice
   * @param {string} prefix
   */
  async slice({ hold }, { ms, tasks, holdMs }, prefix) {
    if (hold === undefined) throw new Error('no hold')
    const cpuBefore = process.cpuUsage()
    const endMs = performance.now() + ms
    let cpuMicros = 0
    let count = 0
    const atEnd = sleep(ms).then(() => {
      const { user, system } = process.cpuUsage(cpuBefore)
      cpuMicros = user + system
    })
    let last = -1
    /** @param {unknown} _ @param {number} index */
    const task = async (_, index) => {
      while (performance.now() < endMs) {
        const release = await hold(prefix)
        if (performance.now() < endMs) {
          await sleep(holdMs)
          // A task that takes the lock again at once has not handed it off.
          if (last !== index) count += 1
          last = index
        }
        await release()
      }
    }
    await Promise.all([...Array.from({ length: tasks }, task), atEnd])
    return { count, rate: count / (ms / 1_000), cpu: cpuMicros / count }
  },
}
