// @ts-check
import { join } from 'node:path'
import { root, run } from '../support/command.mjs'
import { installed } from '../support/fetched.mjs'

/** @type {readonly { node: string, client: string }[]} */
const pairs = [
  { node: '20', client: 'libsql' },
  { node: '20', client: 'better-sqlite3' },
  { node: '22', client: 'node:sqlite' },
  { node: '24', client: 'node:sqlite' },
  { node: '26', client: 'node:sqlite' },
]

/** The last version that supports Node 20. The first run compiles it, which takes a minute or two. */
const BETTER_SQLITE3 = 'better-sqlite3@12'

/**
 * @param {{ others: boolean }} options
 * @returns {import('../matrix.mjs').Row[]}
 */
export const sqliteRows = ({ others }) =>
  pairs.map(({ node: major, client }) => ({
    words: ['sqlite', major, client],
    async runs() {
      const node = await nodeFor(major)
      const folder = client === 'better-sqlite3' ? await installed('better-sqlite3', BETTER_SQLITE3) : root
      const nodeVersion = (await run(node, ['--version'])).stdout.trim()
      const sqlite = /** @type {import('../matrix.mjs').Run} */ ({
        head: [nodeVersion, client, `SQLite ${await sqliteVersion(node, client, folder)}`, 'sqlite'],
        node,
        filters: ['test/drivers/sqlite'],
        env: { HOLDFAST_SQLITE_CLIENT: client, HOLDFAST_SQLITE_CLIENT_FOLDER: folder },
      })
      if (!others || client === 'better-sqlite3') return [sqlite]
      const filters = ['test/core', 'test/primitives']
      return [sqlite, { head: [nodeVersion, '', '', 'core, primitives'], node, filters, env: {} }]
    },
  }))

/**
 * The binary of a version of Node: this one if it fits, or else one from npm.
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
