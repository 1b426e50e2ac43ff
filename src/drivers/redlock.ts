import { checkMethods } from '../core/arguments.ts'
import type { Capabilities, Driver } from '../core/driver.ts'
import { InvalidArgumentError } from '../core/errors.ts'
import { checkOptions, isArray, optionNames } from '../core/options.ts'
import { type Clock, systemClock } from '../core/time/clock.ts'
import { type Random, systemRandom } from '../core/time/random.ts'
import { connectionOf, type RedisClient } from './redis/client.ts'
import { type RedisDriver, type RedlockNode, redisDriverOn } from './redis/driver.ts'
import { openClient } from './redis/open.ts'
import { redlockUrl } from './redis/url.ts'
import { distinctServers } from './redlock/distinct-servers.ts'
import { redlockCapabilities, redlockDriverOn } from './redlock/driver.ts'
import { msFromSeconds } from './shared/seconds.ts'

export const capabilities: Capabilities = redlockCapabilities

/** Exactly one of `clients` and `nodes` is required. */
export interface RedlockOptions {
  /**
   * Clients of independent servers, none a replica of another. You open and close them. Their locks have the prefix
   * `lock:`.
   */
  readonly clients?: readonly RedisClient[]
  /**
   * Drivers of independent servers, `redisDriver({ client })` for each, instead of `clients`: for another prefix. You
   * close them.
   */
  readonly nodes?: readonly RedisDriver[]
  /**
   * How many nodes must agree. Never less than the majority.
   * @default the majority
   */
  readonly quorum?: number
  /**
   * How long a node may take before it counts as failed.
   * @default 1
   */
  readonly nodeTimeoutSeconds?: number
  /**
   * The longest time to live that any client uses. Longer claims and renewals are refused. A node that may have
   * forgotten leases, because it was started, emptied or never asked before, does not vote for this long. Use the same
   * value for all clients.
   * @default 60
   */
  readonly longestTtlSeconds?: number
  /**
   * The nodes never forget anything: `appendonly yes` and `appendfsync always` on every node, no eviction, and no
   * `FLUSHALL`. Then the nodes vote at once, and a time to live has no bound here.
   * @default false
   */
  readonly persistent?: boolean
  /**
   * Called each time a node fails or times out, also if the others were a quorum, and also for work in the background:
   * releasing the leases of a lost vote, publishing a release. Leases that are left on such a node end with their time
   * to live.
   * @default the errors are ignored
   */
  readonly onNodeError?: (failure: RedlockNodeError) => void
  /** For tests. */
  readonly clock?: Clock
  /** For tests. */
  readonly random?: Random
}

export interface RedlockNodeError {
  /** Its place in `clients` or `nodes`, counted from 1, as errors name it: `node 3`. */
  readonly node: string
  readonly error: Error
}

const OPTIONS = optionNames<RedlockOptions>({
  clients: true,
  nodes: true,
  quorum: true,
  nodeTimeoutSeconds: true,
  longestTtlSeconds: true,
  persistent: true,
  onNodeError: true,
  clock: true,
  random: true,
})

/**
 * A lock on several independent Redis servers. It survives the loss of any minority of them. A claim is granted when a
 * quorum of nodes grants it. The nodes agree on the fencing token in the same round trip.
 *
 * @throws `InvalidArgumentError` unless exactly one of `clients` and `nodes` is a list of at least one Redis client or
 *   driver, for a client that is there twice, for a Cluster, for a quorum below the majority, and for seconds that are
 *   out of range.
 *
 * @example
 * ```ts
 * const clients = ['one', 'two', 'three'].map((host) => new Redis({ host, maxRetriesPerRequest: 0 }))
 * const lock = new DistributedLock({ driver: redlockDriver({ clients }) })
 * ```
 */
export function redlockDriver(options: RedlockOptions): Driver {
  checkOptions(options, OPTIONS)
  const { clients, nodes } = options
  if (clients === undefined) return voting(checkedNodes(nodes), 'nodes', options)
  if (nodes !== undefined) {
    throw new InvalidArgumentError('clients', clients, 'absent if `nodes` is given: use one of the two')
  }
  const own = nodesOn(clients, 'lock:')
  return voting(own, 'clients', options, () => closeAll(own))
}

/**
 * Opens a driver for `redlock://host:port,host:port,…`, with `user:password@` before the hosts and `/database` behind
 * them. The parameters are `prefix`, `tls=true`, `longestTtlSeconds` and `persistent=true`.
 *
 * @throws `InvalidArgumentError` if any part of the URL is unknown or invalid, or if it names a server twice.
 * @throws `MissingClientError` if neither ioredis nor redis is installed.
 */
export async function openRedlock(url: string): Promise<Driver> {
  const { targets, prefix, persistent, longestTtlSeconds } = redlockUrl(url)
  const opened = await Promise.all(targets.map((target) => openClient(target, { fast: true })))
  const clients = opened.map(({ client }) => client)
  const nodes = nodesOn(clients, prefix)
  const close = async (): Promise<void> => {
    await Promise.all([closeAll(nodes), ...opened.map((each) => each.close())])
  }
  try {
    const options = { persistent, ...(longestTtlSeconds !== undefined && { longestTtlSeconds }) }
    const driver = voting(nodes, 'url', options, close)
    const reopen = { module: import.meta.url, name: 'openRedlock', args: [url] }
    return { ...driver, extensions: { ...driver.extensions, reopen } }
  } catch (error) {
    await close()
    throw error
  }
}

/** `argument` names the nodes in errors. */
function voting(
  list: readonly RedlockNode[],
  argument: string,
  options: RedlockOptions,
  close: () => Promise<void> = async () => {},
): Driver {
  const { clock = systemClock, random = systemRandom, persistent = false, longestTtlSeconds = 60 } = options
  const nodes = distinctServers(list, argument)
  const majority = Math.floor(nodes.length / 2) + 1
  const { quorum = majority, nodeTimeoutSeconds = 1, onNodeError } = options
  if (!Number.isInteger(quorum) || quorum < majority || quorum > nodes.length) {
    const bounds = `from the majority (${majority}) to all ${nodes.length} nodes`
    const rule = `${bounds}: with fewer, two clients can hold one lock`
    throw new InvalidArgumentError('quorum', quorum, rule)
  }
  const cluster = nodes.findIndex(({ connection }) => connection.cluster)
  if (cluster !== -1) {
    const rule = `single servers: node ${cluster + 1} is a Redis Cluster, whose failovers forget leases unnoticed`
    throw new InvalidArgumentError(argument, nodes[cluster], rule)
  }
  msFromSeconds('nodeTimeoutSeconds', nodeTimeoutSeconds, 3_600)
  msFromSeconds('longestTtlSeconds', longestTtlSeconds, 1_000_000_000)
  return redlockDriverOn({
    nodes,
    quorum,
    timeoutMs: nodeTimeoutSeconds * 1_000,
    longestTtlMs: persistent ? undefined : Math.ceil(longestTtlSeconds * 1_000),
    clock,
    random,
    onNodeError,
    close,
  })
}

function checkedNodes(nodes: readonly RedisDriver[] | undefined): readonly RedlockNode[] {
  if (!isArray(nodes) || nodes.length === 0) {
    throw new InvalidArgumentError('nodes', nodes, 'a list of at least one redis driver, unless you use `clients`')
  }
  for (const [at, node] of nodes.entries()) {
    checkMethods(`nodes[${at}]`, node, ['propose', 'release'], 'a redis driver, such as redisDriver({ client })')
  }
  // What Redlock needs of a node is not part of the public type of a redis driver.
  return nodes as readonly RedlockNode[]
}

function nodesOn(clients: readonly RedisClient[], prefix: string): readonly RedlockNode[] {
  if (!isArray(clients) || clients.length === 0) {
    throw new InvalidArgumentError('clients', clients, 'a list of at least one Redis client')
  }
  return clients.map((client, at) =>
    redisDriverOn({
      connection: connectionOf(client, `clients[${at}]`),
      prefix,
      timeoutMs: 5_000,
    }),
  )
}

async function closeAll(nodes: readonly RedlockNode[]): Promise<void> {
  await Promise.all(nodes.map((node) => node.close()))
}
