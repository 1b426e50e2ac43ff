// @ts-check
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import pg from 'pg'
import { entries } from '../contestants/index.mjs'
import { cpuOfTree } from './cpu.mjs'
import { startPlayer } from './players.mjs'
import { harness } from './servers.mjs'

/** @import { DriverName, Entry, HarnessServer, Pace, Player, Plot, Settings, Stage, Table } from '../types.d.ts' */

const NODES = 5

/**
 * The servers of a run, started when a scenario first needs them, and what it has measured so far.
 *
 * @param {Settings} settings
 * @param {{ onTable(table: Table): void, onPlot(plot: Plot): void }} listener
 * @returns {Stage & AsyncDisposable}
 */
export function openStage(settings, { onTable, onPlot }) {
  const folder = mkdtempSync(join(tmpdir(), 'holdfast-bench-'))
  /** @type {HarnessServer[]} */
  const started = []
  /** @type {{ redis?: HarnessServer | undefined, postgres?: HarnessServer, redlock?: readonly HarnessServer[] }} */
  const servers = {}

  /** @param {number} count */
  async function startRedis(count) {
    const { startRedis } = await harness()
    const list = await Promise.all(Array.from({ length: count }, () => startRedis()))
    started.push(...list)
    return list
  }

  async function startPostgres() {
    const { startPostgres } = await harness()
    const server = await startPostgres({ settings: { fsync: settings.fsync ? 'on' : 'off', max_connections: '1000' } })
    started.push(server)
    return server
  }

  /** @type {Stage['stores']} */
  async function stores(driver) {
    const kind = kindOf(driver)
    if (kind === 'redis') servers.redis ??= (await startRedis(1))[0]
    if (kind === 'redlock') servers.redlock ??= await startRedis(NODES)
    if (kind === 'postgres') servers.postgres ??= await startPostgres()
    return {
      redis: servers.redis?.url ?? '',
      postgres: servers.postgres?.url ?? '',
      redlock: servers.redlock?.map(({ url }) => url) ?? [],
      folder,
    }
  }

  return {
    settings,
    stores,
    startRedis,
    addTable: onTable,
    addPlot: onPlot,
    drivers({ drivers, quickDrivers = drivers }) {
      if (settings.drivers === undefined) return [...(settings.quick ? quickDrivers : drivers)]
      return drivers.filter((each) => settings.drivers?.includes(each))
    },
    paces: () => settings.regimes.map((regime) => paceOf(regime, settings)),
    rounds: ({ quick, full }) => settings.rounds ?? (settings.quick ? quick : full),
    async enter(options) {
      const all = { ...(await stores(options.driver)), ...options.stores }
      const able = chosen(options.driver, settings).filter(
        (entry) => entry.does.includes(options.does) && options.only?.(entry) !== false,
      )
      const settled = await Promise.allSettled(able.map((entry) => startPlayer(entry, { ...options, stores: all })))
      const players = settled.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []))
      const failed = settled.find((each) => each.status === 'rejected')
      if (failed === undefined) return players
      await leave(players)
      throw failed.reason
    },
    serverCpu(driver) {
      const kind = kindOf(driver)
      if (kind === 'redlock') return (servers.redlock ?? []).reduce((sum, { pid }) => sum + cpuOfTree(pid), 0)
      const server = kind === undefined ? undefined : servers[kind]
      return server === undefined ? 0 : cpuOfTree(server.pid)
    },
    async connections(driver) {
      if (kindOf(driver) === 'postgres' && servers.postgres) return postgresConnections(servers.postgres.url)
      return servers.redis ? redisConnections(servers.redis.url) : Number.NaN
    },
    transactions: async () => (servers.postgres ? transactions(servers.postgres.url) : 0),
    async [Symbol.asyncDispose]() {
      for (const server of started) server.resume()
      await Promise.all(started.map((server) => server[Symbol.asyncDispose]()))
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

/** @param {readonly Player[]} players */
export async function leave(players) {
  await Promise.all(players.map((player) => player[Symbol.asyncDispose]()))
}

/**
 * The contestants of a driver. The other build comes right after this one.
 *
 * @param {DriverName} driver
 * @param {Settings} settings
 * @returns {Entry[]}
 */
function chosen(driver, { otherDist, quick }) {
  return entries
    .filter((entry) => entry.driver === driver && !(quick && entry.slow))
    .flatMap((entry) => {
      if (entry.kind !== 'holdfast' || otherDist === undefined) return [entry]
      return [entry, { ...entry, kind: 'other build', title: 'holdfast (other build)', dist: otherDist }]
    })
}

/**
 * @param {Pace['regime']} regime
 * @param {Settings} settings
 * @returns {Pace}
 */
function paceOf(regime, { quick, rounds = quick ? 2 : 7 }) {
  if (regime === 'steady') return { regime, warmUpMs: quick ? 1_000 : 4_000, sliceMs: quick ? 500 : 2_000, rounds }
  return { regime, warmUpMs: quick ? 150 : 300, sliceMs: quick ? 100 : 500, rounds }
}

/**
 * @param {DriverName} driver
 * @returns {'redis' | 'postgres' | 'redlock' | undefined} its kind of server
 */
function kindOf(driver) {
  if (driver === 'redis' || driver === 'node-redis') return 'redis'
  if (driver === 'postgres' || driver === 'advisory') return 'postgres'
  return driver === 'redlock' ? 'redlock' : undefined
}

/** @param {string} url */
async function postgresConnections(url) {
  const client = new pg.Client(url)
  await client.connect()
  const { rows } = await client.query(
    "SELECT count(*) AS count FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
  )
  await client.end()
  return Number(rows[0].count)
}

/** @param {string} url */
async function redisConnections(url) {
  const client = new Redis(url)
  const found = /connected_clients:(\d+)/.exec(await client.info('clients'))
  client.disconnect()
  return Number(found?.[1]) - 1
}

/** @param {string} url */
async function transactions(url) {
  const client = new pg.Client(url)
  await client.connect()
  // A backend reports its counters once a second at most, unless it is idle.
  await client.query('SELECT pg_sleep(1)')
  const { rows } = await client.query('SELECT sum(xact_commit + xact_rollback) AS count FROM pg_stat_database')
  await client.end()
  return Number(rows[0].count)
}
