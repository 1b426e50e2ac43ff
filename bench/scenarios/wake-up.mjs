// @ts-check
import { setTimeout as sleep } from 'node:timers/promises'
import { nowMicros } from '../support/monotonic.mjs'
import { interleave, withoutPeersIfQuick } from '../support/rounds.mjs'
import { leave } from '../support/stage.mjs'
import { median } from '../support/statistics.mjs'

/** @import { Contestant, Figures, Player, Scenario } from '../types.d.ts' */

/** Between the wake-ups of two contestants in a round, so that none disturbs another. */
const APART_MS = 50

const COLUMNS = [
  { key: 'p50', title: 'p50 µs', digits: 0 },
  { key: 'most', title: 'most µs', digits: 0 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'wake-up',
  title: 'wake-up of a waiter in another process',
  drivers: ['redis', 'node-redis', 'postgres', 'advisory', 'sqlite', 'redlock'],
  quickDrivers: ['redis', 'postgres'],
  async run(stage) {
    const { quick } = stage.settings
    const only = withoutPeersIfQuick(stage)
    const holdMs = quick ? 200 : 2_000
    const rounds = stage.rounds({ quick: 2, full: 5 })
    const samples = quick ? 3 : 5
    for (const driver of stage.drivers(scenario)) {
      const players = await stage.enter({ does: 'hold', driver, scenario: 'wake-up', processes: 2, only })
      try {
        for (const player of players) await player.call('prime')
        for (const player of players) await wakeUp(player, 20)
        /** @type {Map<Player, Figures>[]} */
        const found = []
        for (let round = 0; round < rounds; round += 1) found.push(await oneRound(players, { holdMs, samples }))
        let turn = 0
        const rows = await interleave(players, rounds, async (player) => {
          const round = Math.floor(turn / players.length)
          turn += 1
          return found[round]?.get(player) ?? {}
        })
        const title = `wake-up of a waiter in another process after a hold of ${holdMs / 1_000} s, ${driver}`
        const main = /** @type {const} */ ({ key: 'p50', better: 'less' })
        stage.addTable({ id: `wake-up/${driver}/held`, title, regime: undefined, columns: COLUMNS, main, rows })
      } finally {
        await leave(players)
      }
    }
  },
}

export const work = {
  /**
   * @param {Contestant} contestant
   * @param {undefined} _
   * @param {string} prefix
   */
  async prime({ prime }, _, prefix) {
    await prime?.(prefix)
  },

  /**
   * Waits for the lock, and returns when it had it on the machine's monotonic clock.
   *
   * @param {Contestant} contestant
   * @param {undefined} _
   * @param {string} prefix
   */
  async acquire({ hold }, _, prefix) {
    if (hold === undefined) throw new Error('no hold')
    release = await hold(prefix)
    return { micros: nowMicros() }
  },

  /** Returns when the release was called. */
  async release() {
    const micros = nowMicros()
    await release()
    return { micros }
  },
}

/** @type {() => Promise<unknown> | unknown} */
let release = () => {}

/**
 * All contestants hold at the same time, and are released one after the other.
 *
 * @param {readonly Player[]} players
 * @param {{ holdMs: number, samples: number }} options
 * @returns {Promise<Map<Player, Figures>>}
 */
async function oneRound(players, { holdMs, samples }) {
  /** @type {Map<Player, number[]>} */
  const times = new Map(players.map((player) => [player, []]))
  for (let sample = 0; sample < samples; sample += 1) {
    await Promise.all(
      players.map(async (player, index) => {
        times.get(player)?.push(await wakeUp(player, holdMs + index * APART_MS))
      }),
    )
  }
  return new Map(players.map((player) => [player, figuresOf(times.get(player) ?? [])]))
}

/**
 * @param {Player} player
 * @param {number} holdMs
 */
async function wakeUp(player, holdMs) {
  await player.call('acquire', undefined, 0)
  const waiting = player.call('acquire', undefined, 1)
  await sleep(holdMs)
  const released = await player.call('release', undefined, 0)
  const acquired = await waiting
  await player.call('release', undefined, 1)
  return (acquired['micros'] ?? Number.NaN) - (released['micros'] ?? Number.NaN)
}

/** @param {readonly number[]} micros */
const figuresOf = (micros) => ({ p50: median(micros), most: Math.max(...micros) })
