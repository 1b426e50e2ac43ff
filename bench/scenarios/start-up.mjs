// @ts-check
import { fileURLToPath, pathToFileURL } from 'node:url'
import { run } from '../../scripts/support/command.mjs'
import { gzippedSize } from '../support/bundle.mjs'
import { interleave } from '../support/rounds.mjs'
import { leave } from '../support/stage.mjs'

/** @import { Contestant, DriverName, Figures, Kind, Row, Scenario, Stage } from '../types.d.ts' */

const DIST = fileURLToPath(new URL('../../dist', import.meta.url))
const BENCH = fileURLToPath(new URL('..', import.meta.url))
/** The factory function of each driver. */
const DRIVERS = {
  redis: 'redisDriver',
  postgres: 'postgresDriver',
  'postgres-advisory': 'postgresAdvisoryDriver',
  redlock: 'redlockDriver',
  sqlite: 'sqliteDriver',
  memory: 'memoryDriver',
}
const PEERS = ['redlock', 'redis-semaphore', '@verrou/core', 'simple-redis-mutex', 'advisory-lock']

/** @type {Scenario} */
export const scenario = {
  id: 'start-up',
  title: 'import time, first acquire, bundle size',
  drivers: ['redis', 'node-redis', 'postgres', 'advisory', 'redlock'],
  quickDrivers: ['redis'],
  async run(stage) {
    await imports(stage)
    for (const driver of stage.drivers(scenario)) await firstAcquires(stage, driver)
    await bundles(stage)
  },
}

export const work = {
  /**
   * @param {Contestant} contestant
   * @param {undefined} _
   * @param {string} prefix
   */
  async first({ pair }, _, prefix) {
    if (pair === undefined) throw new Error('no pair')
    const startedMs = performance.now()
    await pair(`${prefix}:1`)
    const firstMs = performance.now() - startedMs
    await pair(`${prefix}:2`)
    return { first: firstMs, second: performance.now() - startedMs - firstMs }
  },
}

/** @param {Stage} stage */
async function imports(stage) {
  const subjects = [
    { title: 'holdfast', kind: /** @type {Kind} */ ('holdfast'), modules: [fileUrl(DIST, 'index')] },
    ...builds(stage).map(({ title, kind, dist }) => ({
      title: `${title}/lock and drivers/redis`,
      kind,
      modules: [fileUrl(dist, 'lock'), fileUrl(dist, 'drivers/redis')],
    })),
    ...PEERS.map((title) => ({ title, kind: /** @type {Kind} */ ('peer'), modules: [title] })),
  ]
  /** @type {(Row & { rounds: Figures[] })[]} */
  const rows = subjects.map(({ title, kind }) => ({ title, kind, rounds: [] }))
  for (let round = 0; round < stage.rounds({ quick: 2, full: 9 }); round += 1) {
    for (const [index, { modules }] of subjects.entries()) rows[index]?.rounds.push(await importTimes(modules))
  }
  const columns = [
    { key: 'ms', title: 'ms', digits: 1 },
    { key: 'cpuMs', title: 'CPU ms', digits: 1 },
  ]
  const main = /** @type {const} */ ({ key: 'ms', better: 'less' })
  const title = 'time of the import in a new process'
  stage.addTable({ id: 'start-up/import/root', title, regime: undefined, columns, main, rows })
}

/**
 * @param {readonly string[]} modules
 * @returns {Promise<Figures>}
 */
async function importTimes(modules) {
  const source = `const [startedMs, before] = [performance.now(), process.cpuUsage()]
    await Promise.all(${JSON.stringify(modules)}.map((each) => import(each)))
    const { user, system } = process.cpuUsage(before)
    console.log(JSON.stringify({ ms: performance.now() - startedMs, cpuMs: (user + system) / 1_000 }))`
  const { code, stdout, output } = await run(process.execPath, ['--input-type=module', '-e', source], { cwd: BENCH })
  if (code !== 0) throw new Error(output)
  return JSON.parse(stdout)
}

/**
 * The first pair of a new process on an open connection, and the second.
 *
 * @param {Stage} stage
 * @param {DriverName} driver
 */
async function firstAcquires(stage, driver) {
  /** @type {Row[]} */
  let rows = []
  for (let round = 0; round < stage.rounds({ quick: 2, full: 7 }); round += 1) {
    const players = await stage.enter({ does: 'pair', driver, scenario: 'start-up' })
    const measured = await interleave(players, 1, (player) => player.call('first')).finally(() => leave(players))
    rows = measured.map((row, index) => ({ ...row, rounds: [...(rows[index]?.rounds ?? []), ...row.rounds] }))
  }
  const columns = [
    { key: 'first', title: 'first pair, ms', digits: 1 },
    { key: 'second', title: 'second pair, ms', digits: 1 },
  ]
  const main = /** @type {const} */ ({ key: 'first', better: 'less' })
  const title = `first acquire + release of a process, ${driver}`
  stage.addTable({ id: `start-up/first/${driver}`, title, regime: undefined, columns, main, rows })
}

/** @param {Stage} stage */
async function bundles(stage) {
  const ours = Object.entries(DRIVERS).flatMap(([driver, factory]) =>
    builds(stage).map(({ title, kind, dist }) => ({
      title: `${title}/lock and drivers/${driver}`,
      kind,
      source: `export { DistributedLock } from '${dist}/lock.js'
        export { ${factory} } from '${dist}/drivers/${driver}.js'`,
    })),
  )
  const peers = PEERS.map((title) => ({
    title,
    kind: /** @type {Kind} */ ('peer'),
    source: `export * from '${title}'; import * as all from '${title}'; export default all`,
  }))
  /** @type {Row[]} */
  const rows = []
  for (const { title, kind, source } of [...ours, ...peers]) {
    const { loaded, lazy } = await gzippedSize(source, BENCH)
    rows.push({ title, kind, rounds: [{ kB: loaded / 1_000, lazy: lazy / 1_000 }] })
  }
  const columns = [
    { key: 'kB', title: 'kB', digits: 1 },
    { key: 'lazy', title: 'more on demand, kB', digits: 1 },
  ]
  const main = /** @type {const} */ ({ key: 'kB', better: 'less' })
  const title = 'bundled, minified and gzipped, without the client of the store'
  stage.addTable({ id: 'start-up/bundle/lock', title, regime: undefined, columns, main, rows })
}

/** @param {Stage} stage */
function builds({ settings: { otherDist } }) {
  const here = { title: 'holdfast', kind: /** @type {Kind} */ ('holdfast'), dist: DIST }
  if (otherDist === undefined) return [here]
  return [here, { title: 'holdfast (other build)', kind: /** @type {Kind} */ ('other build'), dist: otherDist }]
}

/**
 * @param {string} dist
 * @param {string} module
 */
const fileUrl = (dist, module) => pathToFileURL(`${dist}/${module}.js`).href
