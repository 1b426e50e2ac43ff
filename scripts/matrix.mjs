// @ts-check
// Runs the tests of the SQLite driver on every Node and client that it supports, and says how each went:
//
//   node scripts/matrix.mjs                 all of them
//   node scripts/matrix.mjs 22 better       only those whose row begins or goes on with one of the words
//   node scripts/matrix.mjs --others        also the tests of the core and the primitives, which need no store
//
// Nodes and better-sqlite3 are installed from npm into the user's cache at the first run; better-sqlite3 is compiled there, which takes a
// minute or two. Not a part of the test command for that reason.
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { build } from './build.mjs'
import { root, run } from './support/command.mjs'

/** @typedef {{ node: string, client: string }} Row */

/** @type {readonly Row[]} */
const rows = [
  { node: '20', client: 'libsql' },
  { node: '20', client: 'better-sqlite3' },
  { node: '22', client: 'node:sqlite' },
  { node: '24', client: 'node:sqlite' },
  { node: '26', client: 'node:sqlite' },
]

/** The last one whose compiled part works on Node 20. */
const BETTER_SQLITE3 = 'better-sqlite3@12'

const cache = join(process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'holdfast', 'matrix')

const words = process.argv.slice(2).filter((word) => !word.startsWith('--'))
const others = process.argv.includes('--others')
const asked = rows.filter(
  ({ node, client }) => words.length === 0 || words.some((word) => node === word || client.includes(word)),
)

const built = await build()
if (built.code !== 0) {
  process.stdout.write(built.output)
  process.exit(1)
}

/** @type {string[][]} */
const table = [['Node', 'client', 'SQLite', 'tests', 'passed', 'failed', 'skipped', 'seconds']]
for (const row of asked) {
  const node = await nodeFor(row.node)
  const folder = row.client === 'better-sqlite3' ? await installed('better-sqlite3', BETTER_SQLITE3) : root
  const env = { HOLDFAST_SQLITE_CLIENT: row.client, HOLDFAST_SQLITE_CLIENT_FOLDER: folder }
  const version = await sqliteVersion(node, row.client, folder)
  const nodeVersion = (await run(node, ['--version'])).stdout.trim()
  await add([nodeVersion, row.client, version, 'sqlite'], node, ['test/drivers/sqlite'], env)
  if (others && row.client !== 'better-sqlite3') {
    await add([nodeVersion, '', '', 'core, primitives'], node, ['test/core', 'test/primitives'], {})
  }
}
print(table)

/**
 * Runs tests and adds what came of it to the table; whatever failed is printed at once.
 *
 * @param {string[]} head
 * @param {string} node
 * @param {string[]} filters
 * @param {Record<string, string>} env
 */
async function add(head, node, filters, env) {
  const file = `${root}.cache/matrix-${process.pid}.json`
  mkdirSync(`${root}.cache`, { recursive: true })
  process.stderr.write(`${head.filter(Boolean).join(' ')} …\n`)
  const startedMs = performance.now()
  const args = ['run', '--reporter=agent', '--reporter=json', `--outputFile.json=${file}`, ...filters]
  const { code, output } = await run(node, [`${root}node_modules/vitest/vitest.mjs`, ...args], {
    env: { ...process.env, NO_COLOR: '1', HOLDFAST_TEST_SERVERS: 'none', ...env },
  })
  const seconds = ((performance.now() - startedMs) / 1_000).toFixed(0)
  const counts = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined
  rmSync(file, { force: true })
  if (code !== 0) {
    process.stdout.write(`\n── ${head.join(' ')}\n${output}\n`)
    process.exitCode = 1
  }
  const { numPassedTests = 0, numFailedTests = 1, numPendingTests = 0 } = counts ?? {}
  const failed = numFailedTests || (code === 0 ? 0 : 1)
  table.push([...head, ...[numPassedTests, failed, numPendingTests, seconds].map(String)])
}

/**
 * The binary of a Node version: this very one if it fits, else npm's own.
 *
 * @param {string} major
 */
async function nodeFor(major) {
  if (process.versions.node.startsWith(`${major}.`)) return process.execPath
  const name = `node-${process.platform === 'win32' ? 'win' : process.platform}-${process.arch}`
  const folder = await installed(`node-${major}`, `${name}@${major}`)
  return join(folder, 'node_modules', name, 'bin', 'node')
}

/**
 * Installs one package into a folder of its own, once.
 *
 * @param {string} name
 * @param {string} what
 */
async function installed(name, what) {
  const folder = join(cache, name)
  const mark = join(folder, 'installed.txt')
  if (existsSync(mark) && readFileSync(mark, 'utf8') === what) return folder
  process.stderr.write(`installing ${what} into ${folder} …\n`)
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'package.json'), '{ "private": true }\n')
  const { code, output } = await run('npm', ['install', '--no-audit', '--no-fund', what], { cwd: folder })
  if (code !== 0) throw new Error(`npm could not install ${what}:\n${output}`)
  writeFileSync(mark, what)
  return folder
}

/**
 * @param {string} node
 * @param {string} client
 * @param {string} folder
 */
async function sqliteVersion(node, client, folder) {
  const source = `
    const found = require('node:module').createRequire(process.argv[1] + '/package.json')(process.argv[2])
    const database = new (found.DatabaseSync ?? found)(':memory:')
    console.log(database.prepare('SELECT sqlite_version() AS version').get().version)
  `
  return (await run(node, ['--no-warnings', '--eval', source, folder, client])).stdout.trim()
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
