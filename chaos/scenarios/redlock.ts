import type { Draw } from '../draw.ts'
import type { Fault, FaultKind } from '../faults.ts'
import { nowMs } from '../history.ts'
import { Links } from '../links.ts'
import type { LoadMeter } from '../load.ts'
import { clockRecipe, commonRecipes, ms, type Recipe, range } from '../plan.ts'
import { pause, type Scenario, type Setting, type Stage } from '../stage.ts'
import { untilLinked } from './redis-address.ts'
import { ask, endRedisNodes, RedisFaults, type RedisNode, redisVersion, startRedisNode } from './redis-node.ts'
import { CALM_MS, restartRecipes, serverRecipes, wrongTimeMs } from './redis-recipes.ts'
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
      keeps: ['lock', 'read'],
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

  async open(setting, { meter }) {
    const [spare, ...nodes] = await Promise.all([
      startRedisNode(),
      ...range(setting.servers).map(() => startRedisNode()),
    ])
    const ports = nodes.map(({ server }) => server.port)
    return new RedlockStage(setting, { nodes, spare, links: await Links.open(setting.clients.length, ports) }, meter)
  },
}

/** A node that has forgotten does not vote for the longest TTL after the first proposal that it gets. */
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
    forgetting(sizes, 'quorum-forgets', (draw, { server }) =>
      draw.chance(0.5) ? { kind: 'data-flushed', server } : { kind: 'restarted-empty', server, downMs: 0 },
    ),
    forgetting(sizes, 'node-failed-over', (draw, { server, lagMs }) => ({
      kind: 'node-failed-over',
      server,
      lagMs,
      downMs: ms(draw, 0, 500),
    })),
    forgetting(sizes, 'restarted-at-wrong-time', (draw, { server, lagMs }) => {
      const byMs = wrongTimeMs(draw)
      // While the clock is ahead, the node must not end its silence: its marks would be ahead for as long.
      const wrongMs = ms(draw, 0, byMs > 0 ? sizes.longestTtlMs * 0.7 : 300)
      return { kind: 'restarted-at-wrong-time', server, data: 'older', lagMs, byMs, wrongMs, downMs: 0 }
    }),
    {
      name: 'server-hung',
      weight: 0.5,
      draw: (draw) => [{ kind: 'server-hung', server: draw.one(servers), forMs: ms(draw, 4_000, 8_000) }],
      aloneForMs: () => 0,
      calmAfterMs: graceMs + CALM_MS,
    },
    {
      name: 'rolling-restart',
      weight: 0.5,
      draw: (draw) => {
        // Until the node votes again, and one renewal after that.
        const everyMs = sizes.longestTtlMs + CALM_MS
        return [{ kind: 'rolling-restart', data: draw.one(['kept', 'none']), everyMs, forMs: everyMs * sizes.servers }]
      },
      aloneForMs: () => graceMs,
      calmAfterMs: graceMs + CALM_MS,
    },
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
function forgetting(
  { servers, clients, longestTtlMs }: Sizes,
  name: string,
  how: (draw: Draw, at: { server: number; lagMs: number }) => FaultKind,
): Recipe {
  return {
    name,
    weight: longestTtlMs > 5_000 ? 0.5 : 1,
    draw: (draw: Draw) => {
      const nodes = range(servers)
      const quorum = draw.some(nodes, Math.floor(servers / 2) + 1)
      const others = nodes.filter((server) => !quorum.includes(server))
      const server = draw.one(quorum)
      // The quorum grants alone for this time, and the node forgets what it has granted in it.
      const afterMs = ms(draw, 500, 3_000)
      const forMs = longestTtlMs + ms(draw, 1_500, 4_500)
      const ways = { clients: range(clients), servers: quorum.filter((each) => each !== server) }
      const forgets = how(draw, { server, lagMs: afterMs })
      return [
        { kind: 'silent', ways: { ...ways, servers: others }, forMs: afterMs },
        'lagMs' in forgets ? forgets : { ...forgets, afterMs },
        { kind: 'silent', ways, forMs, afterMs },
      ]
    },
    // Its second half lasts longer than the grace period.
    aloneForMs: () => 0,
  }
}

class RedlockStage implements Stage {
  readonly links: Links
  readonly #nodes: RedisNode[]
  readonly #clients: readonly number[]
  readonly #meter: LoadMeter
  readonly #faults: RedisFaults
  readonly #longestTtlMs: number
  readonly #graceMs: number
  /** The replica of the node that fails over next. */
  #spare: RedisNode
  /** Servers under a fault. */
  readonly #busy = new Set<number>()

  constructor(
    setting: Setting,
    { nodes, spare, links }: { nodes: RedisNode[]; spare: RedisNode; links: Links },
    meter: LoadMeter,
  ) {
    this.#nodes = nodes
    this.#spare = spare
    this.links = links
    this.#clients = range(setting.clients.length)
    this.#meter = meter
    this.#longestTtlMs = setting.longestTtlMs
    this.#graceMs = graceMsOf(setting)
    this.#faults = new RedisFaults(meter, { graceMs: this.#graceMs })
  }

  get losses() {
    return this.#faults.losses.all
  }

  get spared() {
    return this.#faults.spared
  }

  get url() {
    const hosts = this.#nodes.map(({ server }) => `127.0.0.1:${server.port}`).join(',')
    return `redlock://${hosts}?longestTtlSeconds=${this.#longestTtlMs / 1_000}`
  }

  async apply(fault: Fault, signal: AbortSignal): Promise<boolean> {
    const isEvery = fault.kind === 'rolling-restart'
    const at = isEvery
      ? [...this.#nodes.keys()]
      : 'servers' in fault
        ? fault.servers
        : 'server' in fault
          ? [fault.server]
          : []
    const isWhole = 'forMs' in fault || 'downMs' in fault || fault.kind === 'data-flushed'
    if (!isWhole) return this.#work(fault, at, signal)
    if (at.some((each) => this.#busy.has(each))) return false
    for (const each of at) this.#busy.add(each)
    try {
      return await this.#work(fault, at, signal)
    } finally {
      for (const each of at) this.#busy.delete(each)
    }
  }

  version(): Promise<string> {
    return redisVersion({ port: this.#nodes[0]?.server.port ?? 0 })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.links[Symbol.asyncDispose]()
    await endRedisNodes([...this.#nodes, this.#spare], this.#meter)
  }

  #work(fault: Fault, at: readonly number[], signal: AbortSignal): Promise<boolean> {
    const nodes = at.flatMap((each) => this.#nodes[each] ?? [])
    const faults = this.#faults
    switch (fault.kind) {
      case 'minority-lost': {
        const meanwhile = (): Promise<void> => pause(fault.forMs, signal)
        return fault.by === 'killed' ? faults.killAndRestart(nodes, meanwhile) : faults.stall(nodes, meanwhile)
      }
      case 'server-hung':
        return faults.losses.alone(0, () =>
          faults.sparing({ fault, answers: true }, () => faults.stall(nodes, () => pause(fault.forMs, signal))),
        )
      case 'node-failed-over':
        return faults.losses.alone(this.#graceMs, () => this.#failOver(fault, signal))
      case 'restarted-at-wrong-time':
        return faults.losses.alone(this.#graceMs, () => this.#restartAtWrongTime(fault, nodes, signal))
      case 'rolling-restart':
        return faults.losses.alone(this.#graceMs, () =>
          faults.sparing({ fault }, () => this.#restartInTurn(fault, signal)),
        )
    }
    const done = faults.apply(fault, nodes, signal)
    if (done === undefined) throw new Error(`redlock has no fault ${fault.kind}`)
    return done
  }

  /** Its replica, which lags, takes over its address. It has run for long, and it has the mark of the old server. */
  async #failOver(fault: Fault & { kind: 'node-failed-over' }, signal: AbortSignal): Promise<boolean> {
    const { server: at, lagMs, downMs } = fault
    const [old, successor] = [this.#nodes[at], this.#spare]
    if (old === undefined) throw new RangeError(`there is no node ${at}`)
    await ask(successor.server, 'REPLICAOF', '127.0.0.1', old.server.port)
    await untilLinked(successor.server)
    // It stays a replica, but of a server that does not exist.
    await ask(successor.server, 'REPLICAOF', '127.0.0.1', 1)
    await pause(lagMs, signal)
    return this.#faults.killAndRestart([old], async () => {
      await pause(downMs, signal)
      await ask(successor.server, 'REPLICAOF', 'NO', 'ONE')
      const ways = { clients: this.#clients, servers: [at] }
      this.links.redirect(ways, successor.server.port)
      this.links.cut(ways)
      this.#nodes[at] = successor
      this.#spare = old
    })
  }

  /**
   * A clock that is set forward while a node is silent ends the silence early: the documentation says so. So a clock
   * that is behind is set right before the node is asked.
   */
  async #restartAtWrongTime(
    fault: Fault & { kind: 'restarted-at-wrong-time' },
    nodes: readonly RedisNode[],
    signal: AbortSignal,
  ): Promise<boolean> {
    const ways = { clients: this.#clients, servers: [fault.server] }
    let release = (): void => {}
    const onDown = (): void => {
      if (fault.byMs < 0) release = this.links.begin(ways, { kind: 'held', direction: 'toServer' })
    }
    try {
      await this.#faults.restartWith({ ...fault, onDown }, nodes, signal)
      await pause(fault.wrongMs, signal)
      await this.#faults.shiftClocks(nodes, 0)
    } finally {
      release()
    }
    return true
  }

  async #restartInTurn(
    { data, everyMs }: { data: 'kept' | 'none'; everyMs: number },
    signal: AbortSignal,
  ): Promise<boolean> {
    for (const node of this.#nodes) {
      if (signal.aborted) break
      const nextMs = nowMs() + everyMs
      await this.#faults.restartWith({ data, downMs: 0 }, [node], signal)
      await pause(nextMs - nowMs(), signal)
    }
    return true
  }
}
