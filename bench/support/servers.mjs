// @ts-check
// The servers of a run are those of the test harness: it finds or installs them, and ends them with the run.
import { cpSync, existsSync, mkdirSync, rmSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { root, tsc } from '../../scripts/support/command.mjs'

/** @import { HarnessServer } from '../types.d.ts' */
/**
 * @typedef {{
 *   startRedis(options?: { settings?: Record<string, string> }): Promise<HarnessServer>,
 *   startPostgres(options?: { settings?: Record<string, string> }): Promise<HarnessServer>,
 * }} Harness
 */

/** @type {Promise<Harness> | undefined} */
let compiled

/**
 * Node 20 does not run TypeScript, so tsc compiles the harness first.
 *
 * @returns {Promise<Harness>}
 */
export function harness() {
  compiled ??= compile()
  return compiled
}

async function compile() {
  const folder = `${root}.cache/bench-${process.pid}`
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
  mkdirSync(folder, { recursive: true })
  // The harness needs its other programs beside it.
  const programs = { recursive: true, filter: (/** @type {string} */ path) => !path.endsWith('.ts') }
  cpSync(`${root}test/harness`, `${folder}/harness`, programs)
  const { output } = await tsc(['-p', 'bench/tsconfig.json', '--outDir', folder])
  if (!existsSync(`${folder}/harness/servers.js`)) throw new Error(`cannot compile the test harness:\n${output}`)
  return import(pathToFileURL(`${folder}/harness/servers.js`).href)
}
