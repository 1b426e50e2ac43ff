import { createHash } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findBinaries } from './binaries.ts'
import type { ShiftedClock } from './clock-shim.ts'
import { makeFolder } from './folders.ts'
import { freePort } from './ports.ts'
import { until } from './processes.ts'
import { launch, type Server } from './server-process.ts'
import { askRedis } from './wire.ts'

export interface RedisOptions {
  /** Lines of redis.conf, such as `{ appendonly: 'yes' }`. Without any, the server is empty after a restart. */
  settings?: Record<string, string>
  clock?: ShiftedClock
}

export async function startRedis(options: RedisOptions = {}): Promise<Server> {
  return startNode({ name: 'redis', port: await freePort(), ...options })
}

export interface RedisCluster extends AsyncDisposable {
  nodes: Server[]
}

/** Three masters without replicas, each with a third of the slots. Resolves when all three accept writes. */
export async function startRedisCluster(options: RedisOptions = {}): Promise<RedisCluster> {
  const ports = await Promise.all([freePort(), freePort(), freePort()])
  const settings = {
    'cluster-enabled': 'yes',
    'cluster-node-timeout': '2000',
    ...options.settings,
  }
  const nodes = await startAll(ports.map((port) => startNode({ name: 'redis-cluster', port, ...options, settings })))
  await orDispose(nodes, async () => {
    await Promise.all(
      ports.map(async (port, index) => {
        // With equal epochs, the nodes would first have to settle a collision.
        await askRedis({ port }, 'CLUSTER', 'SET-CONFIG-EPOCH', index + 1)
        // One by one, because Redis 6 does not know ranges.
        await askRedis({ port }, 'CLUSTER', 'ADDSLOTS', ...slotsOf(index, ports.length))
        await askRedis({ port }, 'CLUSTER', 'MEET', '127.0.0.1', ports[0] ?? port)
      }),
    )
    // A new master always refuses writes for its first two seconds.
    await Promise.all(ports.map((port) => untilClusterIsWhole(port, ports.length)))
  })
  return { nodes, [Symbol.asyncDispose]: () => disposeAll(nodes) }
}

export interface RedisSentinel extends AsyncDisposable {
  /** The name under which the Sentinels know the master. */
  masterName: string
  /** The server that was started as master. After a failover, ask the Sentinels. */
  master: Server
  replicas: Server[]
  sentinels: Server[]
  currentMasterPort(): Promise<number>
}

/** One master, two replicas, and three Sentinels that call the master down after a second. Two votes fail over. */
export async function startRedisSentinel(options: RedisOptions = {}): Promise<RedisSentinel> {
  const [masterPort, ...replicaPorts] = await Promise.all([freePort(), freePort(), freePort()])
  const sentinelPorts = await Promise.all([freePort(), freePort(), freePort()])
  // By default, both ends of replication wait for seconds before they begin.
  const settings = { 'repl-diskless-sync-delay': '0', ...options.settings }
  const replicaSettings = { ...settings, replicaof: `127.0.0.1 ${masterPort}` }
  const servers = await startAll([
    startNode({ name: 'redis-master', port: masterPort, ...options, settings }),
    ...replicaPorts.map((port) => startNode({ name: 'redis-replica', port, ...options, settings: replicaSettings })),
    ...sentinelPorts.map((port) => startSentinel(port, { masterPort, replicaPorts, sentinelPorts })),
  ])
  const [master, ...others] = servers
  if (master === undefined) throw new Error('no master was started')

  await orDispose(servers, async () => {
    await Promise.all([
      ...replicaPorts.map((port) => untilInfo(port, 'replication', /master_link_status:up/)),
      ...sentinelPorts.map((port) => untilInfo(port, 'sentinel', /status=ok,.*slaves=2,sentinels=3/)),
    ])
  })
  return {
    masterName: MASTER_NAME,
    master,
    replicas: others.slice(0, 2),
    sentinels: others.slice(2),
    async currentMasterPort() {
      const reply = await askRedis({ port: sentinelPorts[0] ?? 0 }, 'SENTINEL', 'GET-MASTER-ADDR-BY-NAME', MASTER_NAME)
      return Number(Array.isArray(reply) ? reply[1] : Number.NaN)
    },
    [Symbol.asyncDispose]: () => disposeAll(servers),
  }
}

/** Waits for all of them, so that the others are ended if one fails to start. */
export async function startAll<T extends AsyncDisposable>(starting: Promise<T>[]): Promise<T[]> {
  const settled = await Promise.allSettled(starting)
  const started = settled.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []))
  const failed = settled.find((each) => each.status === 'rejected')
  if (failed === undefined) return started
  await disposeAll(started)
  throw failed.reason
}

export async function disposeAll(servers: AsyncDisposable[]): Promise<void> {
  await Promise.all(servers.map((server) => server[Symbol.asyncDispose]()))
}

const MASTER_NAME = 'holdfast'
const SLOTS = 16_384
const FORM_TIMEOUT_MS = 30_000

async function startNode({
  name,
  port,
  settings,
  clock,
}: RedisOptions & { name: string; port: number }): Promise<Server> {
  const all = { port: String(port), bind: '127.0.0.1', save: '""', appendonly: 'no', ...settings }
  return launchRedis({ name, port, conf: Object.entries(all).map((pair) => pair.join(' ')), clock })
}

/** Writes the other Sentinels into each one's file, as it would do itself: discovery by gossip takes seconds. */
async function startSentinel(
  port: number,
  { masterPort, replicaPorts, sentinelPorts }: { masterPort: number; replicaPorts: number[]; sentinelPorts: number[] },
): Promise<Server> {
  const others = sentinelPorts.filter((each) => each !== port)
  const conf = [
    `port ${port}`,
    'bind 127.0.0.1',
    `sentinel myid ${sentinelId(port)}`,
    `sentinel monitor ${MASTER_NAME} 127.0.0.1 ${masterPort} 2`,
    `sentinel down-after-milliseconds ${MASTER_NAME} 1000`,
    `sentinel failover-timeout ${MASTER_NAME} 3000`,
    ...replicaPorts.map((each) => `sentinel known-replica ${MASTER_NAME} 127.0.0.1 ${each}`),
    ...others.map((each) => `sentinel known-sentinel ${MASTER_NAME} 127.0.0.1 ${each} ${sentinelId(each)}`),
  ]
  return launchRedis({ name: 'redis-sentinel', port, conf, clock: undefined, args: ['--sentinel'] })
}

async function launchRedis({
  name,
  port,
  conf,
  clock,
  args = [],
}: {
  name: string
  port: number
  conf: string[]
  clock: ShiftedClock | undefined
  args?: string[]
}): Promise<Server> {
  const binary = (await findBinaries(['redis-server']))['redis-server']
  const folder = makeFolder(name)
  const file = join(folder.path, 'redis.conf')
  writeFileSync(file, [...conf, `dir "${folder.path}"`, ''].join('\n'))
  return launch({
    name,
    command: binary.path,
    args: [file, ...args],
    port,
    url: `redis://127.0.0.1:${port}`,
    folder,
    env: { ...binary.env, ...clock?.env },
    signals: { stop: 'SIGTERM', reap: 'SIGKILL' },
    async isReady(pid) {
      const info = await askRedis({ port, timeoutMs: 500 }, 'INFO')
      return typeof info === 'string' && info.includes(`process_id:${pid}\r\n`) && !info.includes('loading:1')
    },
  })
}

/** Waits until this node knows all nodes and the owners of all slots, and accepts writes if it is a master. */
export async function untilClusterIsWhole(port: number, size: number): Promise<void> {
  let info = ''
  await until(
    async () => {
      info = String(await askRedis({ port }, 'CLUSTER', 'INFO'))
      return (
        info.includes('cluster_state:ok') &&
        info.includes(`cluster_slots_ok:${SLOTS}`) &&
        info.includes(`cluster_known_nodes:${size}`)
      )
    },
    { timeoutMs: FORM_TIMEOUT_MS, failure: () => `the Redis Cluster at port ${port} did not form:\n${info}` },
  )
}

async function untilInfo(port: number, section: string, wanted: RegExp): Promise<void> {
  let info = ''
  await until(
    async () => {
      info = String(await askRedis({ port }, 'INFO', section))
      return wanted.test(info)
    },
    { timeoutMs: FORM_TIMEOUT_MS, failure: () => `the Redis at port ${port} does not say ${wanted}:\n${info}` },
  )
}

/** Ends the servers if a later step fails. */
async function orDispose(servers: AsyncDisposable[], work: () => Promise<void>): Promise<void> {
  try {
    await work()
  } catch (error) {
    await disposeAll(servers)
    throw error
  }
}

function slotsOf(index: number, count: number): number[] {
  const from = Math.ceil((SLOTS * index) / count)
  const to = Math.ceil((SLOTS * (index + 1)) / count)
  return Array.from({ length: to - from }, (_, offset) => from + offset)
}

function sentinelId(port: number): string {
  return createHash('sha1').update(`sentinel ${port}`).digest('hex')
}
