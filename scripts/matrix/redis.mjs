// @ts-check
import { readFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { root, run } from '../support/command.mjs'
import { installed, unpackedServer } from '../support/fetched.mjs'

/**
 * Servers of other Debian releases. None of them has Redis 6.2 or 7.2. Redis 6.0 is older than the oldest version that
 * we support, so it only runs the conformance suite. Redict is the fork of 7.2.4.
 *
 * @type {readonly import('../support/fetched.mjs').DebianServer[]}
 */
const servers = [
  { suite: 'bullseye', package: 'redis-server', ownLibc: false },
  { suite: 'bookworm-backports', below: 'bookworm', package: 'redict-server', ownLibc: false },
  { suite: 'trixie', package: 'redis-server', ownLibc: true },
  { suite: 'experimental', below: 'sid', package: 'redis-server', ownLibc: true },
  { suite: 'bookworm-backports', below: 'bookworm', package: 'valkey-server', ownLibc: false },
  { suite: 'trixie', package: 'valkey-server', ownLibc: true },
  { suite: 'forky', package: 'valkey-server', ownLibc: true },
]

/** In the tests, `is` replaces the package `name`. */
const clients = [
  { name: 'ioredis', is: 'ioredis@5' },
  { name: 'ioredis', is: 'iovalkey' },
  { name: 'redis', is: 'redis@5' },
]

/** All tests, including those that break servers. */
const ON_SERVERS = ['test/drivers/redis', 'test/drivers/redlock']
const CONFORMANCE = ['redis/conformance', 'redis/cluster.test', 'redlock/conformance'].map(
  (each) => `test/drivers/${each}`,
)
/** Files that open every client themselves. Other processes would open the installed client. */
const THROUGH_CLIENTS = [
  'redis/conformance',
  'redis/clients',
  'redis/database',
  'redis/cluster',
  'redis/replication',
  'redlock/conformance',
].map((each) => `test/drivers/${each}`)
const SERVERS = { HOLDFAST_TEST_SERVERS: 'redis,cluster' }

/** @returns {import('../matrix.mjs').Row[]} */
export const redisRows = () => [...servers.map(serverRow), ...clients.map(clientRow)]

/** @param {import('../support/fetched.mjs').DebianServer} server */
const serverRow = (server) => ({
  words: ['redis', 'redlock', 'servers', server.package, server.suite],
  async runs() {
    const folder = await unpackedServer(server)
    const path = `${folder}${delimiter}${process.env['PATH']}`
    const env = { ...SERVERS, PATH: path }
    const version = await versionOf(join(folder, 'redis-server'))
    return [runOf('ioredis 6, redis 6', version, version.startsWith('Redis 6.0') ? CONFORMANCE : ON_SERVERS, env)]
  },
})

/** @param {{ name: string, is: string }} client */
const clientRow = ({ name, is }) => ({
  words: ['redis', 'redlock', 'clients', is],
  async runs() {
    const [bare = is] = is.split('@')
    const folder = join(await installed(is.replace('@', '-'), is), 'node_modules', bare)
    const { version } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
    const env = { ...SERVERS, HOLDFAST_TEST_CLIENT: `${name}=${folder}` }
    return [runOf(`${bare} ${version}`, await versionOf('redis-server'), THROUGH_CLIENTS, env)]
  },
})

/**
 * @param {string} client
 * @param {string} server
 * @param {string[]} filters
 * @param {Record<string, string>} env
 * @returns {import('../matrix.mjs').Run}
 */
const runOf = (client, server, filters, env) => ({
  head: [process.version, client, server, 'redis, redlock'],
  node: process.execPath,
  filters: filters.map((each) => `${root}${each}`),
  env,
})

/** @param {string} program */
async function versionOf(program) {
  const { stdout } = await run(program, ['--version'])
  const [, kind = 'redis', version = '?'] = /^(\w+) server v=(\S+)/.exec(stdout) ?? []
  return `${kind} ${version}`
}
