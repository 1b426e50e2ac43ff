import { type Server, startPostgres, startRedis, startRedisCluster } from '../../test/harness/servers.ts'
import { askRedis } from '../../test/harness/wire.ts'
import { LoadMeter } from '../load.ts'
import { AddressStage } from '../scenarios/redis-address.ts'
import { type Client, openClient, type StoreName } from './client.ts'
import type { Library } from './library.ts'
import type { Protocol } from './message.ts'
import { pause } from './play.ts'
import { Pool } from './pool.ts'
import { postgresConversation } from './postgres.ts'
import { respConversation } from './resp.ts'
import type { Scene } from './scenes/scene.ts'

/** The servers of one run, and a client without faults. */
export interface Ground {
  readonly ports: readonly number[]
  readonly protocol: Protocol
  /** A Cluster: a hash tag for each of its servers. */
  readonly tags?: readonly string[]
  fresh(): Promise<Client>
  flushScripts(): Promise<void>
  refuseWrites(isRefusing: boolean): Promise<void>
  /** What the servers still keep for a lock name, beyond what a driver shows: the keys of every Redis server. */
  left(name: string): Promise<string[]>
  /** Returns the ports of the new master. */
  failOver(): Promise<readonly number[]>
  /** Others may use it now. */
  leave(): void
}

export interface ServerPorts {
  readonly redis?: readonly number[]
  readonly postgres?: number
}

/**
 * Starts servers when a scene needs them. Most scenes share the servers of their store, with different lock names: the
 * proxies keep their faults apart. A scene that changes its servers has them for itself.
 */
export class Grounds implements AsyncDisposable {
  readonly #library: Library
  readonly #given: ServerPorts
  readonly #shared = new Map<StoreName, Promise<Ground>>()
  readonly #own = new Pool(MOST_OWN, () => this.#openOwn())
  readonly #nodes = new Pool(MOST_NODES, () => this.#openNodes())
  readonly #pairs = new Pool(MOST_OWN, () => this.#openPair())
  readonly #ends: (() => unknown)[] = []

  /** `given` are servers that already run. */
  constructor(library: Library, given: ServerPorts = {}) {
    this.#library = library
    this.#given = given
  }

  take(scene: Pick<Scene, 'ground'>, store: StoreName): Promise<Ground> {
    const { ground } = scene
    if (ground === 'pair') return this.#pairs.take()
    if (ground === 'own') return store === 'redlock' ? this.#nodes.take() : this.#own.take()
    const known = this.#shared.get(store) ?? this.#openShared(store)
    this.#shared.set(store, known)
    return known
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.allSettled(this.#ends.map(async (end) => end()))
  }

  async #openShared(store: StoreName): Promise<Ground> {
    const isPostgres = store === 'postgres' || store === 'advisory'
    const ports = await this.#sharedPorts(store)
    const fresh = await this.#openFresh(store, ports)
    this.#ends.unshift(() => fresh.abandon())
    await untilItGrants(fresh)
    return {
      ports,
      ...(store === 'cluster' && { tags: await tagsOf(ports) }),
      protocol: isPostgres ? postgresConversation : respConversation,
      fresh: async () => ({ ...fresh, abandon() {} }),
      flushScripts: impossible,
      refuseWrites: impossible,
      left: isPostgres ? async () => [] : (name) => keysOf(ports, name),
      failOver: impossible,
      leave() {},
    }
  }

  #sharedPorts(store: StoreName): Promise<readonly number[]> {
    if (store === 'cluster') return this.#clusterPorts()
    if (store === 'postgres' || store === 'advisory') return this.#postgresPort().then((port) => [port])
    return this.#redisPorts(store === 'redis' ? 1 : 3)
  }

  async #clusterPorts(): Promise<readonly number[]> {
    const cluster = await startRedisCluster()
    this.#ends.push(() => cluster[Symbol.asyncDispose]())
    return cluster.nodes.map(({ port }) => port)
  }

  #openFresh(store: StoreName, ports: readonly number[]): Promise<Client> {
    return openClient(this.#library, { id: 'z', store, ports, package: 0, isPatient: true })
  }

  #postgres: Promise<number> | undefined
  /** One server for tables and advisory locks. */
  #postgresPort(): Promise<number> {
    const start = async (): Promise<number> => {
      if (this.#given.postgres !== undefined) return this.#given.postgres
      const server = this.#ending(await startPostgres({ settings: { max_connections: '900' } }))
      return server.port
    }
    this.#postgres ??= start()
    return this.#postgres
  }

  async #redisPorts(count: number): Promise<readonly number[]> {
    const given = this.#given.redis?.slice(0, count)
    return given?.length === count ? given : this.#startRedis(count)
  }

  async #startRedis(count: number): Promise<readonly number[]> {
    const servers = await Promise.all(Array.from({ length: count }, () => startRedis()))
    return servers.map((server) => this.#ending(server).port)
  }

  #ending(server: Server): Server {
    this.#ends.push(() => server[Symbol.asyncDispose]())
    return server
  }

  async #openOwn(): Promise<Ground> {
    const [port = 0] = await this.#startRedis(1)
    const ground: Ground = {
      ...ownServers([port]),
      fresh: () => this.#openFresh('redis', [port]),
      leave: () => this.#own.leave(ground),
    }
    return ground
  }

  async #openNodes(): Promise<Ground> {
    const ports = await this.#startRedis(3)
    const fresh = await this.#openFresh('redlock', ports)
    this.#ends.unshift(() => fresh.abandon())
    await untilItGrants(fresh)
    const ground: Ground = {
      ...ownServers(ports),
      fresh: async () => ({ ...fresh, abandon() {} }),
      leave: () => this.#nodes.leave(ground),
    }
    return ground
  }

  async #openPair(): Promise<Ground> {
    // Without clients: its proxies are not those of the scene.
    const setting = { topology: 'address', servers: 1, clients: [], names: [], longestTtlMs: 0 }
    const stage = await AddressStage.open(setting, new LoadMeter())
    this.#ends.push(() => stage[Symbol.asyncDispose]())
    const master = (): number => Number(new URL(stage.url).port)
    const ground: Ground = {
      get ports() {
        return [master()]
      },
      protocol: respConversation,
      fresh: () => this.#openFresh('redis', [master()]),
      flushScripts: impossible,
      refuseWrites: impossible,
      left: (name) => keysOf([master()], name),
      async failOver() {
        const fault = {
          atMs: 0,
          kind: 'failover',
          by: 'replicaof',
          gapMs: 0,
          leave: 'all',
          leaveMs: 0,
          cut: [],
        } as const
        await stage.apply(fault, new AbortController().signal)
        return [master()]
      },
      leave: () => this.#pairs.leave(ground),
    }
    return ground
  }
}

const MOST_OWN = 8
const MOST_NODES = 4

const impossible = (): Promise<never> => Promise.reject(new Error('these servers are shared'))

/** Servers that one scene has for itself. */
const ownServers = (ports: readonly number[]): Omit<Ground, 'fresh' | 'leave'> => ({
  ports,
  protocol: respConversation,
  flushScripts: async () => void (await Promise.all(ports.map((port) => askRedis({ port }, 'SCRIPT', 'FLUSH')))),
  async refuseWrites(isRefusing) {
    const replicas = isRefusing ? 1 : 0
    await Promise.all(ports.map((port) => askRedis({ port }, 'CONFIG', 'SET', 'min-replicas-to-write', replicas)))
  },
  left: (name) => keysOf(ports, name),
  failOver: impossible,
})

const SLOTS = 16_384

/** The first numbers whose slots the servers have. */
async function tagsOf(ports: readonly number[]): Promise<string[]> {
  const tags: string[] = []
  for (let number = 0; Object.keys(tags).length < ports.length; number += 1) {
    const slot = Number(await askRedis({ port: ports[0] as number }, 'CLUSTER', 'KEYSLOT', number))
    tags[Math.floor((slot * ports.length) / SLOTS)] ??= `${number}`
  }
  return tags
}

async function keysOf(ports: readonly number[], name: string): Promise<string[]> {
  const keys = await Promise.all(ports.map((port) => askRedis({ port }, 'KEYS', `*${name}*`)))
  return keys.flat().map((key) => `the key ${key}`)
}

/** The nodes of Redlock do not vote at first. */
async function untilItGrants(client: Client): Promise<void> {
  for (let tries = 0; tries < 300; tries += 1) {
    const result = await client.lock.acquire('wire:ready', { timeoutSeconds: 1 }).catch(() => undefined)
    if (result?.acquired) return void (await result.lock.release())
    await pause(100)
  }
  throw new Error(`the ${client.driver.name} servers do not grant`)
}
