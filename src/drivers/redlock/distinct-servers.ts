import { InvalidArgumentError, StoreError } from '../../core/errors.ts'
import type { RedisConnection } from '../redis/connection.ts'
import type { RedlockNode } from '../redis/driver.ts'
import { isRefusedCommand, storeErrorFrom } from '../redis/errors.ts'

/**
 * Makes sure that no server votes twice: a quorum must consist of different servers. Two names may lead to one server,
 * and only the server itself knows. So each node is asked for its `run_id` together with its first vote. Throws
 * `InvalidArgumentError`, which names `argument`, for a driver or a client that is in the list twice.
 */
export function distinctServers(nodes: readonly RedlockNode[], argument: string): readonly RedlockNode[] {
  const connections = nodes.map(({ connection }) => connection)
  const again = connections.findIndex((each, at) => connections.indexOf(each) !== at)
  if (again !== -1) {
    const first = connections.indexOf(connections[again] as RedlockNode['connection']) + 1
    const rule = `a different server each: node ${again + 1} has the client of node ${first}`
    throw new InvalidArgumentError(argument, nodes, rule)
  }
  const known = new Map<string, string>()
  return nodes.map((node, at) => votingOnce(node, `node ${at + 1}`, known))
}

/** `known`: the name of the node for each `run_id`. */
function votingOnce(node: RedlockNode, name: string, known: Map<string, string>): RedlockNode {
  let checked: Promise<void> | undefined
  let isChecked = false
  const check = async (): Promise<void> => {
    const { runId, replicas } = await identityOf(node.connection)
    const other = runId === undefined ? undefined : known.get(runId)
    if (other !== undefined && other !== name) {
      throw new StoreError(`it is the same server as ${other} (run_id ${runId}), and a server has one vote`)
    }
    if (runId !== undefined) known.set(runId, name)
    isChecked = true
    if (replicas === undefined) return
    const place = node.connection.place === undefined ? '' : ` at ${node.connection.place}`
    process.emitWarning(`Redlock: ${name}${place} ${replicas}. ${WHY_NO_REPLICAS}`, {
      type: 'HoldfastWarning',
      code: 'HOLDFAST_REDLOCK_REPLICAS',
    })
  }
  return {
    ...node,
    propose(proposals) {
      const votes = node.propose(proposals)
      if (isChecked) return votes
      checked ??= check().catch((error: unknown) => {
        checked = undefined
        throw error
      })
      // Both are sent before either is answered. A vote that does not count is released with the others.
      return Promise.all([votes, checked]).then(([counted]) => counted)
    },
  }
}

/** What a server says of itself. Both are undefined if the user may not run INFO, or a proxy hides it. */
export async function identityOf(
  connection: RedisConnection,
): Promise<{ readonly runId: string | undefined; readonly replicas: string | undefined }> {
  const [node] = await connection.nodes()
  const read = async (section: string): Promise<string> => {
    const info = await node?.command(['INFO', section]).catch((error: unknown) => {
      if (isRefusedCommand(error)) return ''
      throw storeErrorFrom('read INFO', error, connection)
    })
    return String(info)
  }
  const [server, replication] = await Promise.all([read('server'), read('replication')])
  const count = Number(/^connected_slaves:(\d+)/m.exec(replication)?.[1] ?? 0)
  const isReplica = /^role:slave/m.test(replication)
  return {
    runId: /^run_id:(\w+)/m.exec(server)?.[1],
    replicas: isReplica
      ? 'is a replica'
      : count > 0
        ? `has ${count} ${count === 1 ? 'replica' : 'replicas'}`
        : undefined,
  }
}

export const WHY_NO_REPLICAS =
  'A replica that takes over has not received all leases, so it does not vote for longestTtlSeconds. ' +
  'Redlock needs independent servers: use nodes without replicas'
