// @ts-check
import { setTimeout as sleep } from 'node:timers/promises'
import { sentCommands } from '../support/clients.mjs'
import { nowMicros } from '../support/monotonic.mjs'
import { inRegimes, interleave, withoutPeersIfQuick } from '../support/rounds.mjs'

/** @import { Contestant, DriverName, EnterOptions, Figures, Player, Scenario, Stage } from '../types.d.ts' */

const PROCESSES = 8
const HOLD_MS = 1

const COLUMNS = [
  { key: 'rate', title: 'hand-offs/s', digits: 0 },
  { key: 'turns', title: 'turns/s', digits: 0 },
  { key: 'cpu', title: 'CPU µs', digits: 0 },
  { key: 'serverCpu', title: 'server CPU µs', digits: 0 },
  { key: 'calls', title: 'commands or transactions', digits: 1 },
  { key: 'unfair', title: 'most ÷ least of a process', digits: 2 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'hand-offs',
  title: '8 processes on one name',
  drivers: ['redis', 'node-redis', 'postgres', 'advisory', 'sqlite', 'redlock'],
  quickDrivers: ['redis', 'postgres'],
  async run(stage) {
    for (const driver of stage.drivers(scenario)) {
      /** @type {EnterOptions} */
      const enter = {
        does: 'hold',
        driver,
        scenario: 'hand-offs',
        processes: PROCESSES,
        // On PostgreSQL a notification also wakes the sessions of an idle contestant that listens. So a variant of
        // Holdfast would slow the other one down.
        only: (entry) => entry.kind !== 'variant' && (withoutPeersIfQuick(stage)?.(entry) ?? true),
      }
      await inRegimes(
        stage,
        enter,
        async (players, { regime, sliceMs, rounds }) => {
          for (const player of players) await player.call('prime')
          const calls = await callsOf(stage, driver, players, sliceMs)
          const rows = await interleave(players, rounds, async (player) => ({
            ...(await handOffs(stage, player, sliceMs)),
            calls: calls.get(player) ?? Number.NaN,
          }))
          const title = `${PROCESSES} processes hold one name for ${HOLD_MS} ms each, ${driver}`
          const main = /** @type {const} */ ({ key: 'rate', better: 'more' })
          stage.addTable({ id: `hand-offs/${driver}/${PROCESSES}`, title, regime, columns: COLUMNS, main, rows })
        },
        compete,
      )
    }
  },
}

/**
 * @param {Player} player
 * @param {number} ms
 */
export const compete = (player, ms) =>
  player.callAll('compete', { ms, tasks: player.entry.does.includes('wait') ? 2 : 1 })

/**
 * One slice in all processes of a contestant.
 *
 * @param {Stage} stage
 * @param {Player} player
 * @param {number} ms
 * @returns {Promise<Figures & { count: number }>}
 */
export async function handOffs(stage, player, ms) {
  const { driver } = player.entry
  const before = stage.serverCpu(driver)
  const all = /** @type {Turns[]} */ (await player.callAll('slice', { ms }))
  const counts = all.map(({ times }) => times.length)
  // A process that takes the lock again at once has not handed it off.
  const holders = all.flatMap(({ times }, holder) => times.map((at) => ({ at, holder }))).sort((a, b) => a.at - b.at)
  const changes = holders.filter(({ holder }, index) => holder !== holders[index - 1]?.holder).length
  const count = player.processes === 1 ? holders.length : changes
  return {
    count,
    rate: count / (ms / 1_000),
    turns: holders.length / (ms / 1_000),
    cpu: all.reduce((sum, { cpu }) => sum + cpu, 0) / count,
    serverCpu: (stage.serverCpu(driver) - before) / count,
    unfair: Math.max(...counts) / Math.min(...counts),
  }
}

/** @typedef {{ times: number[], cpu: number }} Turns when each turn began, and the CPU time of all in microseconds */

let primed = false

export const work = {
  /**
   * @param {Contestant} contestant
   * @param {undefined} _
   * @param {string} prefix
   */
  async prime({ prime }, _, prefix) {
    await prime?.(prefix)
  },

  commands: async () => ({ commands: sentCommands() }),

  /**
   * Takes turns in this process alone, so that its code is compiled.
   *
   * @param {Contestant} contestant
   * @param {{ ms: number, tasks: number }} args
   * @param {string} prefix
   */
  async compete(contestant, { ms, tasks }, prefix) {
    const own = `${prefix}:warm-up:${process.pid}`
    if (!primed) await contestant.prime?.(own)
    primed = true
    await Promise.all(Array.from({ length: tasks }, () => turns(contestant, own, { ms, holdMs: 0 })))
  },

  /**
   * @param {Contestant} contestant
   * @param {{ ms: number }} slice
   * @param {string} prefix
   */
  slice: (contestant, { ms }, prefix) => turns(contestant, prefix, { ms, holdMs: HOLD_MS }),
}

/**
 * @param {Contestant} contestant
 * @param {string} name
 * @param {{ ms: number, holdMs: number }} options
 * @returns {Promise<Turns>}
 */
async function turns({ hold }, name, { ms, holdMs }) {
  if (hold === undefined) throw new Error('no hold')
  const cpuBefore = process.cpuUsage()
  const endMs = performance.now() + ms
  /** @type {number[]} */
  const times = []
  while (performance.now() < endMs) {
    const release = await hold(name)
    // A turn that was granted after the end, because others had ended, does not count.
    if (performance.now() < endMs) times.push(nowMicros())
    if (holdMs > 0) await sleep(holdMs)
    await release()
  }
  const { user, system } = process.cpuUsage(cpuBefore)
  return { times, cpu: user + system }
}

/**
 * The commands or transactions of each hand-off, in a slice that is not timed.
 *
 * @param {Stage} stage
 * @param {DriverName} driver
 * @param {readonly Player[]} players
 * @param {number} ms
 * @returns {Promise<Map<Player, number>>}
 */
export async function callsOf(stage, driver, players, ms) {
  const calls = new Map()
  if (stage.settings.quick) return calls
  for (const player of players) {
    /** @type {() => Promise<number>} */
    const count =
      driver === 'postgres' || driver === 'advisory'
        ? stage.transactions
        : async () => (await player.callAll('commands')).reduce((sum, { commands = 0 }) => sum + commands, 0)
    const before = await count()
    const { count: turns } = await handOffs(stage, player, ms)
    calls.set(player, ((await count()) - before) / turns || Number.NaN)
  }
  return calls
}
