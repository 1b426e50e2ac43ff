import { join } from 'node:path'
import { type Folder, makeFolder } from '../../test/harness/folders.ts'
import { type Server, startServers } from '../../test/harness/servers.ts'
import { askRedis } from '../../test/harness/wire.ts'
import type { ClientPlan } from '../clients.ts'
import { Links } from '../links.ts'
import type { LoadMeter } from '../load.ts'
import { commonRecipes, type Fault, type Recipe, range } from '../plan.ts'
import { RecordServer } from '../record.ts'
import { pause, type Scenario, type Stage } from '../stage.ts'
import { redisVersion } from './redlock.ts'

type Store = 'redis' | 'redlock' | 'postgres' | 'sqlite'

const SERVERS: Record<Store, number> = { redis: 1, redlock: 3, postgres: 1, sqlite: 0 }

/** How clients of each language connect. */
const NODE = {
  redis: ['ioredis', 'redis', 'url'],
  redlock: ['ioredis', 'redis', 'url'],
  postgres: ['url'],
  sqlite: ['url'],
} as const
const PYTHON = {
  redis: ['redis.asyncio', 'redis', 'url'],
  redlock: ['url'],
  postgres: ['asyncpg', 'psycopg', 'url'],
  sqlite: ['url'],
} as const

/** Clients in Node and in Python on one store. Holders increment a record with their fencing tokens. */
export const mixed = (store: Store): Scenario => ({
  drawSetting(draw, { clients, tasks, names, longestTtlSeconds = 2 }) {
    const plans = range(clients).map((client): ClientPlan => {
      const language = client % 2 === 0 ? 'node' : 'python'
      return {
        clockAheadMs: 0,
        settings: {
          language,
          driver: store,
          through: draw.one<ClientPlan['settings']['through']>(language === 'node' ? NODE[store] : PYTHON[store]),
          names: range(names).map((name) => `record:${name}`),
          tasks,
          ttlSeconds: { least: Math.min(0.5, longestTtlSeconds / 2), most: longestTtlSeconds },
          nodeTimeoutSeconds: 1,
          callTimeoutSeconds: draw.one([1.5, 5]),
          // Short, so that the waiters of killed processes do not delay the others for most of the time.
          waiterTtlSeconds: 2,
          confirmed: false,
        },
      }
    })
    return { servers: SERVERS[store], clients: plans, longestTtlMs: longestTtlSeconds * 1_000 }
  },

  recipes({ clients, servers }) {
    const common = commonRecipes({ clients: clients.length, servers })
    // A file has no connections.
    if (servers === 0) return common.filter(({ name }) => /^(?:process|loop)-/.test(name))
    const stalled: Recipe = {
      name: 'server-stalled',
      weight: 1,
      draw: (draw) => [
        { kind: 'server-stalled', servers: [draw.whole(0, servers - 1)], forMs: Math.round(draw.between(100, 2_000)) },
      ],
    }
    const flushed: Recipe = {
      name: 'scripts-flushed',
      weight: 1,
      draw: () => [{ kind: 'scripts-flushed', servers: range(servers) }],
    }
    return store === 'postgres' ? [...common, stalled] : [...common, stalled, flushed]
  },

  async open(setting, meter) {
    const started = store === 'postgres' ? await startServers({ postgres: true }) : undefined
    const { redis = [] } = store === 'postgres' ? {} : await startServers({ redis: setting.servers })
    const servers = started === undefined ? redis : [started.postgres]
    const links = await Links.open(
      setting.clients.length,
      servers.map(({ port }) => port),
    )
    return new MixedStage(store, servers, links, await RecordServer.open(), meter)
  },
})

class MixedStage implements Stage {
  readonly links: Links
  readonly losses = []
  readonly records: RecordServer
  readonly #store: Store
  readonly #servers: readonly Server[]
  readonly #meter: LoadMeter
  readonly #folder: Folder = makeFolder('chaos-mixed')
  readonly #paused = new Set<Server>()

  constructor(store: Store, servers: readonly Server[], links: Links, records: RecordServer, meter: LoadMeter) {
    this.#store = store
    this.#servers = servers
    this.links = links
    this.records = records
    this.#meter = meter
  }

  get clientSettings() {
    return { recordPort: this.records.port, path: this.#path }
  }

  /** Redlock has no queue. */
  get queueUrl(): string | undefined {
    if (this.#store === 'redlock') return undefined
    return this.#store === 'sqlite' ? `sqlite:${this.#path}` : this.#servers[0]?.url
  }

  async apply(fault: Fault, signal: AbortSignal): Promise<boolean> {
    if (fault.kind === 'scripts-flushed') {
      await Promise.all(this.#servers.map((server) => askRedis(server, 'SCRIPT', 'FLUSH').catch(() => {})))
      return true
    }
    if (fault.kind !== 'server-stalled') throw new Error(`mixed has no fault ${fault.kind}`)
    const server = this.#servers[fault.servers[0] ?? 0]
    if (server === undefined || this.#paused.has(server)) return false
    this.#paused.add(server)
    await server.pause()
    await pause(fault.forMs, signal)
    server.resume()
    this.#paused.delete(server)
    return true
  }

  async version(): Promise<string> {
    const [server] = this.#servers
    return server !== undefined && this.#store !== 'postgres' ? redisVersion(server.port) : this.#store
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const server of this.#servers) this.#meter.add('servers', server.pid)
    await this.links[Symbol.asyncDispose]()
    await this.records[Symbol.asyncDispose]()
    await Promise.all(this.#servers.map((server) => server[Symbol.asyncDispose]()))
    this.#folder.remove()
  }

  get #path(): string {
    return join(this.#folder.path, 'locks.db')
  }
}
