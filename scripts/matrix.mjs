// @ts-check
// Runs the tests of drivers on every version of Node, client and server that they support and this machine can get, and
// prints a table of the results:
//
//   npm run matrix                      all rows
//   npm run matrix -- sqlite            the SQLite driver: versions of Node, and clients
//   npm run matrix -- redis             the Redis and Redlock drivers: servers and clients
//   npm run matrix -- valkey            the rows with a driver, Node, client or server that begins with this word
//   npm run matrix -- bundlers          bundlers, each on SQLite, Redis and PostgreSQL
//   npm run matrix -- runners           test runners with their module systems, on the same stores
//   npm run matrix -- typescript        versions of TypeScript, with each way to find a module
//   npm run matrix -- sqlite --others   also the tests of the core and the primitives, which need no store
//
// The first run fetches what is missing into the user's cache: Node and clients with npm, servers of other Debian
// releases with apt-get, which unpacks but does not install them. For this reason, and because it takes long, it is not
// part of the test command.
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs'
import { build } from './build.mjs'
import { redisRows } from './matrix/redis.mjs'
import { sqliteRows } from './matrix/sqlite.mjs'
import { toolRows } from './matrix/tools.mjs'
import { root, run } from './support/command.mjs'

/**
 * @typedef {object} Row
 * @property {readonly string[]} words that select this row
 * @property {() => Promise<readonly Run[]>} runs fetches the versions that it needs
 *
 * @typedef {object} Run
 * @property {readonly [node: string, client: string, store: string, tests: string]} head
 * @property {string} node
 * @property {readonly string[]} filters vitest's
 * @property {Readonly<Record<string, string>>} env
 */

const words = process.argv.slice(2).filter((word) => !word.startsWith('--'))
const rows = [...sqliteRows({ others: process.argv.includes('--others') }), ...redisRows(), ...toolRows()]
const asked = rows.filter(
  (row) => words.length === 0 || words.some((word) => row.words.some((each) => fits(each, word))),
)

if (asked.length === 0) {
  console.error(`no row matches ${words.join(', ')}`)
  process.exit(1)
}

const built = await build()
if (built.code !== 0) {
  process.stdout.write(built.output)
  process.exit(1)
}

/** @type {string[][]} */
const table = [['Node', 'client', 'store', 'tests', 'passed', 'failed', 'skipped', 'seconds']]
for (const row of asked) {
  for (const each of await row.runs()) table.push(await result(each))
}
print(table)

/**
 * A number must match exactly, so that 2 does not select 20, 22 and 24.
 *
 * @param {string} of
 * @param {string} word
 */
function fits(of, word) {
  return /^\d+$/.test(word) ? of === word : of.startsWith(word)
}

/**
 * Runs tests, and returns a line of the table. Prints failures at once.
 *
 * @param {Run} what
 */
async function result({ head, node, filters, env }) {
  const file = `${root}.cache/matrix-${process.pid}.json`
  mkdirSync(`${root}.cache`, { recursive: true })
  process.stderr.write(`${head.filter(Boolean).join(' ')} …\n`)
  const startedMs = performance.now()
  const args = ['run', '--reporter=agent', '--reporter=json', `--outputFile.json=${file}`, ...filters]
  const { code, output, signal } = await run(node, [`${root}node_modules/vitest/vitest.mjs`, ...args], {
    env: { ...process.env, NO_COLOR: '1', HOLDFAST_TEST_SERVERS: 'none', ...env },
  })
  const seconds = ((performance.now() - startedMs) / 1_000).toFixed(0)
  const counts = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined
  rmSync(file, { force: true })
  if (signal !== undefined) process.exit(1) // The run was interrupted: skip the other rows.
  if (code !== 0) {
    process.stdout.write(`\n── ${head.join(' ')}\n${output}\n`)
    process.exitCode = 1
  }
  const { numPassedTests = 0, numFailedTests = 1, numPendingTests = 0 } = counts ?? {}
  const failed = numFailedTests || (code === 0 ? 0 : 1)
  return [...head, ...[numPassedTests, failed, numPendingTests, seconds].map(String)]
}

/** @param {readonly (readonly string[])[]} lines */
function print(lines) {
  const widths = lines[0]?.map((_, column) => Math.max(...lines.map((line) => line[column]?.length ?? 0))) ?? []
  for (const line of lines) {
    console.log(
      line
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
  }
}
