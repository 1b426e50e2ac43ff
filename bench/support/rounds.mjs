// @ts-check
import { leave } from './stage.mjs'

/** @import { DriverName, EnterOptions, Entry, Figures, Pace, Player, Row, Stage } from '../types.d.ts' */

/**
 * Lets the contestants run one slice after the other, round by round, so that other work on the machine slows all of
 * them. Each round begins with another contestant.
 *
 * @param {readonly Player[]} players
 * @param {number} rounds
 * @param {(player: Player) => Promise<Figures>} slice
 * @returns {Promise<Row[]>}
 */
export async function interleave(players, rounds, slice) {
  const rows = players.map(({ entry }) => ({
    title: entry.title,
    kind: entry.kind,
    rounds: /** @type {Figures[]} */ ([]),
  }))
  for (let round = 0; round < rounds; round += 1) {
    for (let turn = 0; turn < players.length; turn += 1) {
      const index = (turn + round) % players.length
      const player = /** @type {Player} */ (players[index])
      rows[index]?.rounds.push(await slice(player))
    }
  }
  return rows
}

/**
 * Enters the contestants for each regime in new processes, and warms them up: briefly, or until a steady state.
 *
 * @param {Stage} stage
 * @param {EnterOptions} options
 * @param {(players: Player[], pace: Pace) => Promise<void>} measure
 * @param {(player: Player, ms: number) => Promise<unknown>} run for so long, to warm up
 */
export async function inRegimes(stage, options, measure, run) {
  for (const pace of stage.paces()) {
    const players = await stage.enter(options)
    try {
      for (const player of players) await warmUp(player, pace.warmUpMs / (player.processes > 1 ? 2 : 1), run)
      await measure(players, pace)
    } finally {
      await leave(players)
    }
  }
}

/**
 * Until each process has had so much CPU time, because on a busy machine it gets less of it. A peer that mostly sleeps
 * never has it, so the time is limited as well.
 *
 * @param {Player} player
 * @param {number} cpuMs
 * @param {(player: Player, ms: number) => Promise<unknown>} run
 */
export async function warmUp(player, cpuMs, run) {
  const used = async () => {
    const all = await player.callAll('cpu')
    return all.reduce((sum, { micros = 0 }) => sum + micros, 0) / 1_000 / player.processes
  }
  const [before, endMs] = [await used(), performance.now() + cpuMs * (2 + player.processes / 2)]
  do await run(player, Math.min(cpuMs, 250))
  while ((await used()) - before < cpuMs && performance.now() < endMs)
}

/**
 * Adds what the server did during a slice, for each of its operations.
 *
 * @param {Stage} stage
 * @param {DriverName} driver
 * @param {() => Promise<Figures & { count: number }>} slice
 * @returns {Promise<Figures & { count: number }>}
 */
export async function withServerCpu(stage, driver, slice) {
  const before = stage.serverCpu(driver)
  const figures = await slice()
  return { ...figures, serverCpu: (stage.serverCpu(driver) - before) / figures.count }
}

/**
 * Without peers and variants in a quick run. Peers that poll take longer to end a contended slice than it has time.
 *
 * @param {Stage} stage
 * @returns {((entry: Entry) => boolean) | undefined}
 */
export const withoutPeersIfQuick = (stage) =>
  stage.settings.quick ? ({ kind }) => kind !== 'peer' && kind !== 'variant' : undefined
