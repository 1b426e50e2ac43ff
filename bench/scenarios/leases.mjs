// @ts-check
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { sentCommands } from '../support/clients.mjs'
import { withoutPeersIfQuick } from '../support/rounds.mjs'
import { leave } from '../support/stage.mjs'

/** @import { Contestant, DriverName, Figures, Row, Scenario } from '../types.d.ts' */

const LEASES = 10_000

const COLUMNS = [
  { key: 'cpuMs', title: 'CPU ms', digits: 0 },
  { key: 'commands', title: 'commands', digits: 0 },
  { key: 'serverMs', title: 'server CPU ms', digits: 0 },
  { key: 'bytes', title: 'bytes each', digits: 0 },
  { key: 'blockMs', title: 'longest block ms', digits: 1 },
  { key: 'acquireMs', title: 'to acquire all, ms', digits: 0 },
  { key: 'lost', title: 'lost', digits: 0 },
]

/** @type {Scenario} */
export const scenario = {
  id: 'leases',
  title: '10,000 leases held with heartbeat',
  drivers: ['redis', 'postgres'],
  quickDrivers: ['redis'],
  async run(stage) {
    // Both take two TTLs, so they have equally many renewals.
    const { quick } = stage.settings
    const ttlMs = quick ? 2_000 : 10_000
    for (const driver of stage.drivers(scenario)) {
      const players = await stage.enter({
        does: 'keep',
        driver,
        scenario: 'leases',
        nodeOptions: ['--expose-gc'],
        only: withoutPeersIfQuick(stage),
      })
      /** @type {Row[]} */
      const rows = []
      try {
        // One after the other: each has the machine to itself.
        for (const player of players) {
          const kept = await player.call('keep', { leases: LEASES, ttlMs, atOnce: atOnce(driver) })
          const serverBefore = stage.serverCpu(driver)
          const watched = await player.call('watch', { ms: 2 * ttlMs })
          const serverMs = (stage.serverCpu(driver) - serverBefore) / 1_000
          const blocked = await player.call('block', { ms: quick ? ttlMs / 2 : ttlMs })
          const { title, kind } = player.entry
          rows.push({ title, kind, rounds: [{ ...kept, ...watched, ...blocked, serverMs }] })
          await player[Symbol.asyncDispose]()
        }
      } finally {
        await leave(players)
      }
      const title = `${LEASES.toLocaleString('en')} leases with a TTL of ${ttlMs / 1_000} s for two TTLs, ${driver}`
      const main = /** @type {const} */ ({ key: 'cpuMs', better: 'less' })
      const id = `leases/${driver}/${LEASES}`
      stage.addTable({ id, title, regime: undefined, columns: COLUMNS, main, rows })
    }
  },
}

/**
 * On a busy machine, a table takes longer for 10,000 rows than a call may take.
 *
 * @param {DriverName} driver
 */
const atOnce = (driver) => (driver === 'postgres' ? 1_000 : LEASES)

let lost = 0
const onLost = () => {
  lost += 1
}

export const work = {
  /**
   * @param {Contestant} contestant
   * @param {{ leases: number, ttlMs: number, atOnce: number }} args
   * @param {string} prefix
   * @returns {Promise<Figures>}
   */
  async keep({ keep }, { leases, ttlMs, atOnce }, prefix) {
    if (keep === undefined) throw new Error('no keep')
    /** @param {string} kind */
    const keepAll = async (kind) => {
      const all = []
      for (let from = 0; from < leases; from += atOnce) {
        const names = Array.from({ length: atOnce }, (_, index) => `${prefix}:${kind}:${from + index}`)
        all.push(...(await Promise.all(names.map((name) => keep(name, ttlMs, onLost)))))
      }
      return all
    }
    // A first round, so that compiled code and first allocations are not counted as leases.
    await Promise.all((await keepAll('warm')).map((release) => release()))
    await sleep(100)
    globalThis.gc?.()
    const before = process.memoryUsage().heapUsed
    const startedMs = performance.now()
    releases = await keepAll('held')
    const acquireMs = performance.now() - startedMs
    globalThis.gc?.()
    return { acquireMs, bytes: (process.memoryUsage().heapUsed - before) / leases }
  },

  /**
   * @param {Contestant} _
   * @param {{ ms: number }} args
   * @returns {Promise<Figures>}
   */
  async watch(_, { ms }) {
    const [sentBefore, cpuBefore] = [sentCommands(), process.cpuUsage()]
    await sleep(ms)
    const { user, system } = process.cpuUsage(cpuBefore)
    return { cpuMs: (user + system) / 1_000, commands: sentCommands() - sentBefore || Number.NaN }
  },

  /**
   * Measured apart from the CPU time, because this costs CPU time itself.
   *
   * @param {Contestant} _
   * @param {{ ms: number }} args
   * @returns {Promise<Figures>}
   */
  async block(_, { ms }) {
    const delay = monitorEventLoopDelay({ resolution: 1 })
    delay.enable()
    await sleep(ms)
    delay.disable()
    return { blockMs: delay.max / 1e6, lost, held: releases.length }
  },
}

/** Keeps the leases reachable. */
/** @type {(() => Promise<unknown>)[]} */
let releases = []
