// @ts-check
import { setTimeout as sleep } from 'node:timers/promises'
import { interleave } from '../support/rounds.mjs'
import { leave } from '../support/stage.mjs'

/** @import { Contestant, Entry, Figures, Player, Row, Scenario } from '../types.d.ts' */

const PROCESSES = [1, 4, 16, 40, 64]
/** Short, so that a renewal that comes too late loses its lease within a slice. */
const TTL_MS = 2_000

const COLUMNS = [
  { key: 'rate', title: 'pairs/s', digits: 0 },
  { key: 'p50', title: 'p50 ms', digits: 1 },
  { key: 'p99', title: 'p99 ms', digits: 1 },
  { key: 'most', title: 'longest ms', digits: 0 },
  { key: 'cpu', title: 'CPU µs', digits: 0 },
  { key: 'failed', title: 'failed calls', digits: 0 },
  { key: 'lost', title: 'lost leases', digits: 0 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'crowd',
  title: '1 to 64 processes that share nothing but the store',
  drivers: ['sqlite'],
  async run(stage) {
    const { quick } = stage.settings
    for (const driver of stage.drivers(scenario)) {
      for (const processes of quick ? [4, 40] : PROCESSES) {
        /** @param {Entry} entry */
        const only = ({ kind }) => kind !== 'peer' && kind !== 'variant'
        const players = await stage.enter({ does: 'keep', driver, scenario: 'crowd', processes, only })
        /** @type {Row[]} */
        let rows = []
        try {
          for (const player of players) await player.callAll('warm')
          const ms = quick ? 2 * TTL_MS : 4 * TTL_MS
          rows = await interleave(players, stage.rounds({ quick: 1, full: 3 }), (player) => slice(player, ms))
        } finally {
          await leave(players)
        }
        const title = `${processes} processes, each with one lease and its own names, ${driver}`
        const main = /** @type {const} */ ({ key: 'rate', better: 'more' })
        stage.addTable({ id: `crowd/${driver}/${processes}`, title, regime: undefined, columns: COLUMNS, main, rows })
      }
    }
  },
}

/**
 * @param {Player} player
 * @param {number} ms
 * @returns {Promise<Figures>}
 */
async function slice(player, ms) {
  const all = /** @type {Slice[]} */ (await player.callAll('slice', { ms }))
  const times = all.flatMap((each) => each.times).sort((a, b) => a - b)
  /** @param {(each: Slice) => number} of */
  const sum = (of) => all.reduce((total, each) => total + of(each), 0)
  return {
    rate: times.length / (ms / 1_000),
    p50: times[Math.floor(times.length / 2)] ?? Number.NaN,
    p99: times[Math.floor(times.length * 0.99)] ?? Number.NaN,
    most: times.at(-1) ?? Number.NaN,
    cpu: sum(({ cpu }) => cpu) / times.length,
    failed: sum(({ failed }) => failed),
    lost: sum(({ lost }) => lost),
  }
}

/** @typedef {{ times: number[], failed: number, lost: number, cpu: number }} Slice */

let pairs = 0

export const work = {
  /**
   * Until its code is compiled. All processes together would need too long for that.
   *
   * @param {Contestant} contestant
   * @param {undefined} _
   * @param {string} prefix
   */
  async warm(contestant, _, prefix) {
    for (const endMs = performance.now() + 300; performance.now() < endMs; ) await onePair(contestant, prefix)
  },

  /**
   * Keeps one lease, and acquires and releases free locks meanwhile.
   *
   * @param {Contestant} contestant
   * @param {{ ms: number }} args
   * @param {string} prefix
   * @returns {Promise<Slice>}
   */
  async slice(contestant, { ms }, prefix) {
    /** @type {Slice} */
    const found = { times: [], failed: 0, lost: 0, cpu: 0 }
    const release = await kept(contestant, prefix, () => {
      found.lost += 1
    })
    const before = process.cpuUsage()
    for (const endMs = performance.now() + ms; performance.now() < endMs; ) {
      const startedMs = performance.now()
      try {
        await onePair(contestant, prefix)
        found.times.push(performance.now() - startedMs)
      } catch {
        found.failed += 1
      }
    }
    const { user, system } = process.cpuUsage(before)
    const lost = found.lost
    await Promise.resolve(release()).catch(() => {})
    return { ...found, lost, cpu: user + system }
  },
}

/**
 * @param {Contestant} contestant
 * @param {string} prefix
 */
async function onePair({ pair }, prefix) {
  pairs += 1
  await pair?.(`${prefix}:${process.pid}:${pairs}`)
}

/**
 * All processes take their lease at the same time, so the first try may fail.
 *
 * @param {Contestant} contestant
 * @param {string} prefix
 * @param {() => void} onLost
 */
async function kept({ keep }, prefix, onLost) {
  if (keep === undefined) throw new Error('no keep')
  for (let tries = 1; ; tries += 1) {
    try {
      return await keep(`${prefix}:${process.pid}:kept:${tries}`, TTL_MS, onLost)
    } catch (error) {
      if (tries === 10) throw error
      await sleep(Math.random() * 100)
    }
  }
}
