import type { Server } from '../../test/harness/servers.ts'
import { startServers } from '../../test/harness/servers.ts'
import { askRedis } from '../../test/harness/wire.ts'
import type { ClientPlan } from '../clients.ts'
import { nowMs } from '../history.ts'
import { Links } from '../links.ts'
import type { LoadMeter } from '../load.ts'
import { commonRecipes, type Fault, type Recipe, range } from '../plan.ts'
import { pause, type Scenario, type Setting, type Stage } from '../stage.ts'

/** Three or five fresh nodes. Each client reaches each node through its own proxy. */
export const redlock: Scenario = {
  drawSetting(draw, { clients, tasks, names, longestTtlSeconds }) {
    const servers = draw.one([3, 5, 5])
    const longest = longestTtlSeconds ?? draw.one([3, 8])
    const nodeTimeoutSeconds = draw.one([0.3, 1])
    const callTimeoutSeconds = draw.one([1.5, 5])
    const hasClockAhead = draw.chance(0.5)
    const plans = range(clients).map((client): ClientPlan => {
      const through = draw.weighted([
        ['ioredis', 4],
        ['redis', 3],
        ['url', 2],
      ] as const)
      return {
        clockAheadMs: hasClockAhead && client === 0 ? 10_000 : 0,
        settings: {
          language: 'node',
          driver: 'redlock',
          through,
          names: range(names).map((name) => `order:${name}`),
          tasks,
          ttlSeconds: { least: Math.min(1, longest / 2), most: longest },
          nodeTimeoutSeconds,
          callTimeoutSeconds,
          waiterTtlSeconds: 10,
          confirmed: false,
        },
      }
    })
    return { servers, clients: plans, longestTtlMs: longest * 1_000 }
  },

  recipes(setting) {
    const servers = range(setting.servers)
    const clients = range(setting.clients.length)
    const all = { clients, servers }
    const nodeTimeoutMs = (setting.clients[0]?.settings.nodeTimeoutSeconds ?? 1) * 1_000
    const recipes: Recipe[] = [
      ...commonRecipes({ clients: clients.length, servers: servers.length }),
      {
        name: 'scripts-flushed',
        weight: 2,
        draw: (draw) => [
          {
            kind: 'scripts-flushed',
            servers: draw.chance(0.5) ? servers : draw.some(servers, draw.whole(1, servers.length)),
          },
        ],
      },
      {
        // A node that has forgotten its scripts gets a second request, after the client has stopped waiting for it.
        name: 'forgotten-and-late',
        weight: 4,
        draw: (draw) => {
          const some = draw.chance(0.5) ? clients : draw.some(clients, draw.whole(1, clients.length))
          const timeouts = (least: number, most: number): number =>
            Math.round(nodeTimeoutMs * draw.between(least, most))
          const forMs = timeouts(1.1, 3.5)
          return [
            { kind: 'scripts-flushed', servers },
            { kind: 'late', ways: { ...all, clients: some }, direction: 'toClient', byMs: timeouts(0.9, 1.7), forMs },
            { kind: 'scripts-flushed', servers, afterMs: timeouts(0.5, 1.2) },
            { kind: 'scripts-flushed', servers, afterMs: forMs },
          ]
        },
      },
      {
        // A node of the quorum forgets, its other nodes are unreachable, and the nodes that had no vote are back. If
        // the node that has forgotten votes, it makes a second quorum that knows nothing of the first.
        name: 'quorum-forgets',
        weight: setting.longestTtlMs > 5_000 ? 0.5 : 1.5,
        draw: (draw) => {
          const quorum = draw.some(servers, Math.floor(servers.length / 2) + 1)
          const others = servers.filter((server) => !quorum.includes(server))
          const server = draw.one(quorum)
          const afterMs = Math.round(draw.between(500, 3_000))
          const forMs = setting.longestTtlMs + Math.round(draw.between(1_500, 4_500))
          return [
            { kind: 'silent', ways: { clients, servers: others }, forMs: afterMs },
            draw.chance(0.5)
              ? { kind: 'data-flushed', server, afterMs }
              : { kind: 'restarted-empty', server, downMs: 0, afterMs },
            { kind: 'silent', ways: { clients, servers: quorum.filter((each) => each !== server) }, forMs, afterMs },
          ]
        },
      },
      {
        name: 'server-stalled',
        weight: 2,
        draw: (draw) => [
          {
            kind: 'server-stalled',
            servers: draw.some(servers, draw.whole(1, servers.length)),
            forMs: Math.round(draw.between(100, 3_000)),
          },
        ],
      },
      {
        name: 'restarted-empty',
        weight: 2,
        draw: (draw) => [
          { kind: 'restarted-empty', server: draw.one(servers), downMs: Math.round(draw.between(0, 1_500)) },
        ],
      },
      { name: 'data-flushed', weight: 2, draw: (draw) => [{ kind: 'data-flushed', server: draw.one(servers) }] },
    ]
    return recipes
  },

  async open(setting, meter) {
    const { redis } = await startServers({ redis: setting.servers })
    const ports = redis.map(({ port }) => port)
    return new RedlockStage(setting, redis, await Links.open(setting.clients.length, ports), meter)
  },
}

class RedlockStage implements Stage {
  readonly links: Links
  readonly losses = []
  readonly #setting: Setting
  readonly #servers: readonly Server[]
  readonly #meter: LoadMeter
  /** Servers under a fault. */
  readonly #busy = new Set<number>()
  /** Before this time no second node may forget: leases that the last one has forgotten may still be held. */
  #forgetAgainAtMs = 0

  constructor(setting: Setting, servers: readonly Server[], links: Links, meter: LoadMeter) {
    this.#setting = setting
    this.#servers = servers
    this.links = links
    this.#meter = meter
  }

  async apply(fault: Fault, signal: AbortSignal): Promise<boolean> {
    switch (fault.kind) {
      case 'scripts-flushed':
        await Promise.all(fault.servers.map((at) => askRedis(this.#server(at), 'SCRIPT', 'FLUSH').catch(() => {})))
        return true
      case 'server-stalled':
        return this.#with(fault.servers, async (servers) => {
          for (const server of servers) await server.pause()
          await pause(fault.forMs, signal)
          for (const server of servers) server.resume()
          return true
        })
      case 'restarted-empty':
        return this.#with([fault.server], async ([server]) => {
          if (server === undefined || !this.#mayForget()) return false
          this.#meter.add('servers', server.pid)
          await server.kill()
          await pause(fault.downMs, signal)
          await server.restart()
          this.#hasForgotten()
          return true
        })
      case 'data-flushed':
        return this.#with([fault.server], async ([server]) => {
          if (server === undefined || !this.#mayForget()) return false
          await askRedis({ port: server.port, timeoutMs: 10_000 }, 'FLUSHALL')
          this.#hasForgotten()
          return true
        })
      default:
        throw new Error(`redlock has no fault ${fault.kind}`)
    }
  }

  async version(): Promise<string> {
    return redisVersion(this.#server(0).port)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const server of this.#servers) this.#meter.add('servers', server.pid)
    await this.links[Symbol.asyncDispose]()
    await Promise.all(this.#servers.map((server) => server[Symbol.asyncDispose]()))
  }

  /** Checks and reserves synchronously: a second node must not begin to forget before the first has finished. */
  #mayForget(): boolean {
    if (nowMs() < this.#forgetAgainAtMs) return false
    this.#forgetAgainAtMs = Number.POSITIVE_INFINITY
    return true
  }

  #hasForgotten(): void {
    // Servers report their uptime in full seconds.
    this.#forgetAgainAtMs = nowMs() + this.#setting.longestTtlMs + 1_500
  }

  async #with(at: readonly number[], work: (servers: Server[]) => Promise<boolean>): Promise<boolean> {
    if (at.some((each) => this.#busy.has(each))) return false
    for (const each of at) this.#busy.add(each)
    try {
      return await work(at.map((each) => this.#server(each)))
    } finally {
      for (const each of at) this.#busy.delete(each)
    }
  }

  #server(at: number): Server {
    const server = this.#servers[at]
    if (server === undefined) throw new RangeError(`there is no server ${at}`)
    return server
  }
}

export async function redisVersion(port: number): Promise<string> {
  const info = String(await askRedis({ port, timeoutMs: 10_000 }, 'INFO', 'server'))
  return /redis_version:(\S+)/.exec(info)?.[1] ?? 'unknown'
}
