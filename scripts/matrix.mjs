// @ts-check
// Runs the tests of drivers on every Node, client and server that they support and this machine can get, and says how each went:
//
//   npm run matrix                      all of them
//   npm run matrix -- sqlite            the SQLite driver: Nodes and clients
//   npm run matrix -- redis             the Redis and Redlock drivers: servers and clients
//   npm run matrix -- valkey            only rows of which something begins with one of the words: a driver, a Node, a client, a server
//   npm run matrix -- sqlite --others   also the tests of the core and the primitives, which need no store
//
// What is missing is fetched into the user's cache at the first run: Nodes and clients by npm, servers of other Debian releases by apt-get, which unpacks
// and does not install them. Not a part of the test command for that reason, and because it takes long.
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs'
import { build } from './build.mjs'
import { redisRows } from './matrix/redis.mjs'
import { sqliteRows } from './matrix/sqlite.mjs'
import { root, run } from './support/command.mjs'

/**
 * @typedef {object} Row
 * @property {readonly string[]} words what it can be asked for by
 * @property {() => Promise<readonly Run[]>} runs fetches what it needs
 *
 * @typedef {object} Run
 * @property {readonly [node: string, client: string, store: string, tests: string]} head
 * @property {string} node
 * @property {readonly string[]} filters vitest's
 * @property {Readonly<Record<string, string>>} env
 */

const words = process.argv.slice(2).filter((word) => !word.startsWith('--'))
const rows = [...sqliteRows({ others: process.argv.includes('--others') }), ...redisRows()]
const asked = rows.filter(
  (row) => words.length === 0 || words.some((word) => row.words.some((each) => fits(each, word))),
)

if (asked.length === 0) {
  console.error(`no row has any of these: ${words.join(', ')}`)
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
 * A number is a whole version, so that 2 is not all of 20, 22 and 24.
 *
 * @param {string} of
 * @param {string} word
 */
function fits(of, word) {
  return /^\d+$/.test(word) ? of === word : of.startsWith(word)
}

/**
 * Runs tests and answers a line of the table; whatever failed is printed at once.
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
  if (signal !== undefined) process.exit(1) // The run was interrupted: not one row after the other.
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
