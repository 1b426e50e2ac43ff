import { InvalidArgumentError, StoreError } from '../../core/errors.ts'
import type { RedisDriver } from '../redis/driver.ts'
import { storeErrorFrom } from '../redis/errors.ts'

/**
 * Nodes of which none votes for a server that votes already: a quorum must be one of servers. Two names may lead to one
 * server, which only the server itself can tell, so each is asked once for its `run_id`, in the same breath as its
 * first vote. Throws `InvalidArgumentError` for a driver or a client that is there twice.
 */
export function distinctServers(nodes: readonly RedisDriver[]): readonly RedisDriver[] {
  const connections = nodes.map(({ connection }) => connection)
  const again = connections.findIndex((each, at) => connections.indexOf(each) !== at)
  if (again !== -1) {
    const first = connections.indexOf(connections[again] as RedisDriver['connection']) + 1
    const rule = `another server each: node ${again + 1} has the client of node ${first}`
    throw new InvalidArgumentError('nodes', nodes, rule)
  }
  const known = new Map<string, string>()
  return nodes.map((node, at) => votingOnce(node, `node ${at + 1}`, known))
}

/** `known`: by its `run_id`, which node a server is. */
function votingOnce(node: RedisDriver, name: string, known: Map<string, string>): RedisDriver {
  let checked: Promise<void> | undefined

  async function check(): Promise<void> {
    const runId = await runIdOf(node)
    const other = runId === undefined ? undefined : known.get(runId)
    if (other !== undefined && other !== name) {
      throw new StoreError(`it is the same server as ${other} (run_id ${runId}), and a server votes once`)
    }
    if (runId !== undefined) known.set(runId, name)
  }

  function isDistinct(): Promise<void> {
    checked ??= check().catch((error: unknown) => {
      checked = undefined
      throw error
    })
    return checked
  }

  return {
    ...node,
    async propose(...proposals) {
      // Both are sent before either is answered. A vote that does not count is given back with the others.
      const [, votes] = await Promise.all([isDistinct(), node.propose(...proposals)])
      return votes
    },
  }
}

/** Undefined where the user may not ask, or something before the server hides it. */
async function runIdOf({ connection }: RedisDriver): Promise<string | undefined> {
  const [node] = await connection.nodes()
  const info = await node?.command(['INFO', 'server']).catch((error: Error) => {
    if (/^NOPERM|unknown command/i.test(error.message)) return ''
    throw storeErrorFrom('look at the server', error, connection)
  })
  return /^run_id:(\w+)/m.exec(String(info))?.[1]
}
