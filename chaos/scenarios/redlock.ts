import type { Draw } from '../draw.ts'
import type { Fault } from '../faults.ts'
import { Links } from '../links.ts'
import type { LoadMeter } from '../load.ts'
import { clockRecipe, commonRecipes, ms, type Recipe, range } from '../plan.ts'
import { pause, type Scenario, type Setting, type Stage } from '../stage.ts'
import { endRedisNodes, RedisFaults, type RedisNode, redisVersion, startRedisNode } from './redis-node.ts'
import { restartRecipes, serverRecipes } from './redis-recipes.ts'
import { drawSetting } from './setting.ts'

/** Three or five fresh nodes. Each client reaches each node through its own proxy. */
export const redlock: Scenario = {
  hasQueue: false,
  isMixable: true,
  get faultNames() {
    return recipesOf({ servers: 5, clients: 1, longestTtlMs: 1_000, nodeTimeoutMs: 1_000 }).map(({ name }) => name)
  },

  drawSetting(draw, options) {
    return drawSetting(draw, options, {
      driver: 'redlock',
      servers: draw.one([3, 5, 5]),
      nodeTimeoutSeconds: draw.one([0.3, 1]),
      node: [
        ['ioredis', 4],
        ['redis', 3],
        ['url', 2],
      ],
    })
  },

  recipes({ servers, clients, longestTtlMs }) {
    const nodeTimeoutMs = (clients[0]?.settings.nodeTimeoutSeconds ?? 1) * 1_000
    return recipesOf({ servers, clients: clients.length, longestTtlMs, nodeTimeoutMs })
  },

  async open(setting, meter) {
    const nodes = await Promise.all(range(setting.servers).map(() => startRedisNode()))
    const ports = nodes.map(({ server }) => server.port)
    return new RedlockStage(setting, nodes, await Links.open(setting.clients.length, ports), meter)
  },
}

/** A node that has forgotten does not vote for the longest TTL. Servers report their uptime in full seconds. */
const graceMsOf = ({ longestTtlMs }: { longestTtlMs: number }): number => longestTtlMs + 1_500

interface Sizes {
  servers: number
  clients: number
  longestTtlMs: number
  nodeTimeoutMs: number
}

function recipesOf(sizes: Sizes): Recipe[] {
  const servers = range(sizes.servers)
  const graceMs = graceMsOf(sizes)
  const all = { servers: sizes.servers, masters: sizes.servers, graceMs, longestStallMs: 3_000 }
  return [
    ...commonRecipes({ clients: sizes.clients, servers: sizes.servers }),
    ...serverRecipes(all),
    ...restartRecipes(all),
    clockRecipe(sizes.servers),
    {
      name: 'minority-lost',
      weight: 1,
      draw: (draw) => [
        {
          kind: 'minority-lost',
          servers: draw.some(servers, Math.floor((sizes.servers - 1) / 2)),
          by: draw.one(['killed', 'stalled'] as const),
          forMs: ms(draw, 500, 5_000),
        },
      ],
    },
    forgottenAndLate(sizes),
    quorumForgets(sizes),
  ]
}

/** A node that has forgotten its scripts gets a second request, after the client has stopped waiting for it. */
function forgottenAndLate({ servers, clients, nodeTimeoutMs }: Sizes): Recipe {
  return {
    name: 'forgotten-and-late',
    weight: 3,
    draw: (draw) => {
      const nodes = range(servers)
      const some = draw.chance(0.5) ? range(clients) : draw.some(range(clients), draw.whole(1, clients))
      const timeouts = (least: number, most: number): number => Math.round(nodeTimeoutMs * draw.between(least, most))
      const forMs = timeouts(1.1, 3.5)
      const ways = { clients: some, servers: nodes }
      return [
        { kind: 'scripts-flushed', servers: nodes },
        { kind: 'late-replies', ways, byMs: timeouts(0.9, 1.7), forMs },
        { kind: 'scripts-flushed', servers: nodes, afterMs: timeouts(0.5, 1.2) },
        { kind: 'scripts-flushed', servers: nodes, afterMs: forMs },
      ]
    },
  }
}

/**
 * A node of the quorum forgets, its other nodes are unreachable, and the nodes that had no vote are back. If the node
 * that has forgotten votes, it makes a second quorum that knows nothing of the first.
 */
function quorumForgets({ servers, clients, longestTtlMs }: Sizes): Recipe {
  return {
    name: 'quorum-forgets',
    weight: longestTtlMs > 5_000 ? 0.5 : 1.5,
    draw: (draw: Draw) => {
      const nodes = range(servers)
      const quorum = draw.some(nodes, Math.floor(servers / 2) + 1)
      const others = nodes.filter((server) => !quorum.includes(server))
      const server = draw.one(quorum)
      const afterMs = ms(draw, 500, 3_000)
      const forMs = longestTtlMs + ms(draw, 1_500, 4_500)
      const ways = { clients: range(clients), servers: quorum.filter((each) => each !== server) }
      return [
        { kind: 'silent', ways: { ...ways, servers: others }, forMs: afterMs },
        draw.chance(0.5)
          ? { kind: 'data-flushed', server, afterMs }
          : { kind: 'restarted-empty', server, downMs: 0, afterMs },
        { kind: 'silent', ways, forMs, afterMs },
      ]
    },
    // Its second half lasts longer than the grace period.
    aloneForMs: () => 0,
  }
}

class RedlockStage implements Stage {
  readonly links: Links
  readonly #nodes: readonly RedisNode[]
  readonly #meter: LoadMeter
  readonly #faults: RedisFaults
  readonly #longestTtlMs: number
  /** Servers under a fault. */
  readonly #busy = new Set<number>()

  constructor(setting: Setting, nodes: readonly RedisNode[], links: Links, meter: LoadMeter) {
    this.#nodes = nodes
    this.links = links
    this.#meter = meter
    this.#longestTtlMs = setting.longestTtlMs
    this.#faults = new RedisFaults(meter, { graceMs: graceMsOf(setting) })
  }

  get losses() {
    return this.#faults.losses.all
  }

  get url() {
    const hosts = this.#nodes.map(({ server }) => `127.0.0.1:${server.port}`).join(',')
    return `redlock://${hosts}?longestTtlSeconds=${this.#longestTtlMs / 1_000}`
  }

  async apply(fault: Fault, signal: AbortSignal): Promise<boolean> {
    const at = 'servers' in fault ? fault.servers : 'server' in fault ? [fault.server] : []
    const nodes = at.flatMap((each) => this.#nodes[each] ?? [])
    const isWhole = 'forMs' in fault || 'downMs' in fault || fault.kind === 'data-flushed'
    if (!isWhole) return this.#work(fault, nodes, signal)
    if (at.some((each) => this.#busy.has(each))) return false
    for (const each of at) this.#busy.add(each)
    try {
      return await this.#work(fault, nodes, signal)
    } finally {
      for (const each of at) this.#busy.delete(each)
    }
  }

  version(): Promise<string> {
    return redisVersion({ port: this.#nodes[0]?.server.port ?? 0 })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.links[Symbol.asyncDispose]()
    await endRedisNodes(this.#nodes, this.#meter)
  }

  #work(fault: Fault, nodes: readonly RedisNode[], signal: AbortSignal): Promise<boolean> {
    if (fault.kind === 'minority-lost') {
      const meanwhile = (): Promise<void> => pause(fault.forMs, signal)
      return fault.by === 'killed'
        ? this.#faults.killAndRestart(nodes, meanwhile)
        : this.#faults.stall(nodes, meanwhile)
    }
    const done = this.#faults.apply(fault, nodes, signal)
    if (done === undefined) throw new Error(`redlock has no fault ${fault.kind}`)
    return done
  }
}
