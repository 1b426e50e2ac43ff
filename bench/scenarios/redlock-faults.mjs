// @ts-check
import { setTimeout as sleep } from 'node:timers/promises'
import { namesOf } from '../support/names.mjs'
import { interleave, withoutPeersIfQuick } from '../support/rounds.mjs'
import { leave } from '../support/stage.mjs'
import { timed } from '../support/timed.mjs'

/** @import { Contestant, Figures, HarnessServer, Player, Scenario, Stage } from '../types.d.ts' */

const HURT = [1, 3]
const NODES = 5
/** A library that waits for a hung node without a deadline of its own is given up. */
const PATIENCE_MS = 3_000

const COLUMNS = [
  { key: 'healthyP50', title: 'healthy p50 µs', digits: 0 },
  { key: 'killedP50', title: '2 killed p50 µs', digits: 0 },
  { key: 'killedP99', title: 'p99 µs', digits: 0 },
  { key: 'killed', title: 'p50 ÷ healthy', digits: 2 },
  { key: 'hungP50', title: '2 hung p50 µs', digits: 0 },
  { key: 'hungP99', title: 'p99 µs', digits: 0 },
  { key: 'hung', title: 'p50 ÷ healthy', digits: 2 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'redlock-faults',
  title: 'redlock over 5 nodes: healthy, 2 killed, 2 hung',
  drivers: ['redlock'],
  async run(stage) {
    if (stage.drivers(scenario).length === 0) return
    /** @type {Record<'healthy' | 'killed' | 'hung', Group>} */
    const groups = { healthy: await openGroup(stage), killed: await openGroup(stage), hung: await openGroup(stage) }
    try {
      for (const at of HURT) {
        await groups.killed.servers[at]?.kill()
        await groups.hung.servers[at]?.pause()
      }
      await sleep(200) // so that the clients notice
      const ms = stage.settings.quick ? 150 : 500
      for (const { players } of Object.values(groups)) for (const player of players) await player.call('slice', { ms })
      const rows = await interleave(groups.healthy.players, stage.rounds({ quick: 2, full: 7 }), async (player) => {
        const at = groups.healthy.players.indexOf(player)
        const healthy = await player.call('slice', { ms })
        const killed = (await groups.killed.players[at]?.call('slice', { ms })) ?? {}
        const hung = (await groups.hung.players[at]?.call('slice', { ms })) ?? {}
        return compared(healthy, killed, hung)
      })
      const title = `redlock over ${NODES} nodes, acquire + release one at a time`
      const main = /** @type {const} */ ({ key: 'hungP50', better: 'less' })
      const id = 'redlock-faults/redlock/faults'
      stage.addTable({ id, title, regime: undefined, columns: COLUMNS, main, rows })
    } finally {
      for (const { players } of Object.values(groups)) await leave(players)
      for (const { servers } of Object.values(groups)) for (const server of servers) server.resume()
    }
  },
}

export const work = {
  /**
   * @param {Contestant} contestant
   * @param {{ ms: number }} slice
   * @param {string} prefix
   */
  async slice({ pair }, { ms }, prefix) {
    if (pair === undefined) throw new Error('no pair')
    const next = namesOf(prefix)
    const measuring = timed({ atOnce: 1, ms }, () => pair(next()))
    measuring.catch(() => {})
    return Promise.race([measuring, sleep(PATIENCE_MS, { p50: Number.NaN, p99: Number.NaN })])
  },
}

/** @typedef {{ servers: readonly HarnessServer[], players: Player[] }} Group */

/**
 * @param {Stage} stage
 * @returns {Promise<Group>}
 */
async function openGroup(stage) {
  const servers = await stage.startRedis(NODES)
  const stores = { redlock: servers.map(({ url }) => url) }
  const only = withoutPeersIfQuick(stage)
  return {
    servers,
    players: await stage.enter({ does: 'pair', driver: 'redlock', scenario: 'redlock-faults', stores, only }),
  }
}

/**
 * @param {Figures} healthy
 * @param {Figures} killed
 * @param {Figures} hung
 * @returns {Figures}
 */
function compared({ p50 = Number.NaN }, killed, hung) {
  return {
    healthyP50: p50,
    killedP50: killed['p50'] ?? Number.NaN,
    killedP99: killed['p99'] ?? Number.NaN,
    killed: (killed['p50'] ?? Number.NaN) / p50,
    hungP50: hung['p50'] ?? Number.NaN,
    hungP99: hung['p99'] ?? Number.NaN,
    hung: (hung['p50'] ?? Number.NaN) / p50,
  }
}
