import { type ShiftedClock, shiftedClock } from '../../test/harness/clock-shim.ts'
import { until } from '../../test/harness/processes.ts'
import { untilClusterIsWhole } from '../../test/harness/redis.ts'
import { type RedisCluster, type Server, startRedis, startRedisCluster } from '../../test/harness/servers.ts'
import type { Fault } from '../faults.ts'
import { nowMs } from '../history.ts'
import { Links } from '../links.ts'
import type { LoadMeter } from '../load.ts'
import { SETTLE_MS } from '../losses.ts'
import { NAMES } from '../open-store.ts'
import { range } from '../plan.ts'
import { pause, type Setting, type Stage, Turns } from '../stage.ts'
import { replicationOf, untilLinked } from './redis-address.ts'
import { ask, DURABLE, isAnswered, PATIENCE_MS, RedisFaults, redisVersion } from './redis-node.ts'

export const MASTERS = 3
const SLOTS = 16_384

interface Shard {
  master: Server
  replica: Server
}

/** Three masters with a replica each. Each client reaches each of the six through its own proxy. */
export class ClusterStage implements Stage {
  readonly links: Links
  readonly #cluster: RedisCluster
  readonly #clock: ShiftedClock
  readonly #shards: readonly Shard[]
  /** In the order of the links. */
  readonly #servers: readonly Server[]
  readonly #meter: LoadMeter
  readonly #faults: RedisFaults
  readonly #turns = new Turns()
  /** The shards of slots that were moved. */
  readonly #moved = new Map<number, number>()

  /** The names that its clients claim. */
  readonly #names: readonly string[]

  private constructor(parts: {
    names: readonly string[]
    cluster: RedisCluster
    clock: ShiftedClock
    shards: Shard[]
    links: Links
    meter: LoadMeter
  }) {
    this.#names = parts.names
    this.#cluster = parts.cluster
    this.#clock = parts.clock
    this.#shards = parts.shards
    this.#servers = [...parts.shards.map(({ master }) => master), ...parts.shards.map(({ replica }) => replica)]
    this.links = parts.links
    this.#meter = parts.meter
    this.#faults = new RedisFaults(parts.meter)
  }

  static async open({ clients, names: own }: Setting, meter: LoadMeter): Promise<ClusterStage> {
    const clock = await shiftedClock()
    // Only the harness fails over: on a busy machine, a healthy master may not answer in time.
    const settings = {
      ...DURABLE,
      'cluster-enabled': 'yes',
      'cluster-replica-no-failover': 'yes',
      // As Redis has it. With less, a master that hangs takes the entire Cluster down.
      'cluster-node-timeout': '15000',
    }
    const [cluster, ...replicas] = await Promise.all([
      startRedisCluster({ settings, clock }),
      ...range(MASTERS).map(() => startRedis({ settings, clock })),
    ])
    const shards = cluster.nodes.map((master, at) => ({ master, replica: replicas[at] as Server }))
    await Promise.all(shards.map(joinReplica))
    const ports = [...cluster.nodes, ...replicas].map(({ port }) => port)
    // A new replica knows only its master at first. A client of redis that asks it for the slots then never finds the
    // others.
    await Promise.all(ports.map((port) => untilClusterIsWhole(port, ports.length)))
    const kept = clients.flatMap(({ settings }) => settings.kept.map(({ name }) => name))
    const names = [...own, ...Object.values(NAMES), ...kept]
    return new ClusterStage({ names, cluster, clock, shards, links: await Links.open(clients.length, ports), meter })
  }

  get losses() {
    return this.#faults.losses.all
  }

  get spared() {
    return this.#faults.spared
  }

  get url() {
    return `redis+cluster://${this.#shards.map(({ master }) => `127.0.0.1:${master.port}`).join(',')}`
  }

  get clientSettings() {
    return { announcedPorts: this.#servers.map(({ port }) => port) }
  }

  async apply(fault: Fault, signal: AbortSignal): Promise<boolean> {
    switch (fault.kind) {
      case 'slot-moved':
        return this.#turns.take(signal, () => this.#moveSlot(fault, signal))
      case 'cluster-failover':
        return this.#turns.take(signal, () =>
          fault.by === 'command'
            ? this.#failOver(fault.shard)
            : this.#faults.losses.alone(SETTLE_MS, () =>
                this.#loseMaster(fault.shard, () => pause(fault.downMs, signal)),
              ),
        )
      case 'server-hung':
        return this.#turns.take(signal, () => this.#hang(fault, signal))
      case 'scripts-flushed':
      case 'listeners-killed':
      case 'connections-killed':
      case 'out-of-memory':
        return this.#common(fault, signal)
      default:
        return this.#turns.take(signal, () => this.#common(fault, signal))
    }
  }

  version(): Promise<string> {
    return redisVersion({ port: this.#shards[0]?.master.port ?? 0 })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const { pid } of this.#servers) this.#meter.add('servers', pid)
    await this.links[Symbol.asyncDispose]()
    await this.#cluster[Symbol.asyncDispose]()
    await Promise.all(this.#servers.map((server) => server[Symbol.asyncDispose]()))
    this.#clock[Symbol.dispose]()
  }

  async #common(fault: Fault, signal: AbortSignal): Promise<boolean> {
    const at = 'servers' in fault ? fault.servers : 'server' in fault ? [fault.server] : []
    const masters = at.flatMap((each) => this.#shards[each]?.master ?? [])
    // All servers share a clock.
    const done = this.#faults.apply(
      fault,
      masters.map((server) => ({ server, clock: this.#clock })),
      signal,
    )
    if (done === undefined) throw new Error(`a Cluster has no fault ${fault.kind}`)
    return done
  }

  /** Moves a slot in use, as `redis-cli --cluster reshard` does. Half of the time, its keys are on both sides. */
  async #moveSlot(
    { lockName, toNext, forMs }: { lockName: string; toNext: number; forMs: number },
    signal: AbortSignal,
  ): Promise<boolean> {
    const { slot, owner } = await this.#placeOf(lockName)
    const next = (owner + toNext) % MASTERS
    const [from, to] = [this.#shardAt(owner).master, this.#shardAt(next).master]
    const [fromId, toId] = await Promise.all([from, to].map(async (node) => String(await ask(node, 'CLUSTER', 'MYID'))))
    await ask(to, 'CLUSTER', 'SETSLOT', slot, 'IMPORTING', fromId ?? '')
    await ask(from, 'CLUSTER', 'SETSLOT', slot, 'MIGRATING', toId ?? '')
    await pause(forMs / 2, signal)
    const first = (await ask(from, 'CLUSTER', 'GETKEYSINSLOT', slot, 1)) as string[]
    await carry(from, to, first)
    await pause(forMs / 2, signal)
    const hasArrived = async (): Promise<boolean> => {
      const keys = (await ask(from, 'CLUSTER', 'GETKEYSINSLOT', slot, 100)) as string[]
      await carry(from, to, keys)
      return keys.length === 0
    }
    await until(hasArrived, { timeoutMs: PATIENCE_MS, failure: () => `slot ${slot} cannot be moved` })
    for (const node of [to, from, ...this.#shards.map(({ master }) => master)]) {
      await ask(node, 'CLUSTER', 'SETSLOT', slot, 'NODE', toId ?? '')
    }
    this.#moved.set(slot, next)
    return true
  }

  async #placeOf(lockName: string): Promise<{ slot: number; owner: number }> {
    const slot = Number(await ask(this.#shardAt(0).master, 'CLUSTER', 'KEYSLOT', `lock:${lockName}`))
    return { slot, owner: this.#moved.get(slot) ?? Math.floor((slot * MASTERS) / SLOTS) }
  }

  /** The locks of the other masters are held and claimed as if nothing had happened. */
  async #hang(fault: Fault & { kind: 'server-hung' }, signal: AbortSignal): Promise<boolean> {
    const owners = await Promise.all(this.#names.map(async (name) => (await this.#placeOf(name)).owner))
    const names = this.#names.filter((_, at) => owners[at] !== fault.server)
    const nodes = [{ server: this.#shardAt(fault.server).master }]
    return this.#faults.sparing({ fault, names, answers: true }, () =>
      this.#faults.stall(nodes, () => pause(fault.forMs, signal)),
    )
  }

  /** A planned failover: the master stops writes until the replica has all of them. */
  async #failOver(at: number): Promise<boolean> {
    const { master, replica } = this.#shardAt(at)
    await untilLinked(replica)
    if (!(await isAnswered(ask(replica, 'CLUSTER', 'FAILOVER')))) return false
    // Redis gives up after five seconds, for example if its master is too busy.
    const isOver = async (): Promise<boolean> => (await roleOf(replica)) === 'master'
    const inTime = { timeoutMs: 10_000, failure: () => '' }
    if (!(await isAnswered(until(isOver, inTime)))) return false
    await this.#swap(at, { master: replica, replica: master })
    return true
  }

  /** The replica takes over without the writes that it has not received. */
  async #loseMaster(at: number, meanwhile: () => Promise<void>): Promise<boolean> {
    const { master, replica } = this.#shardAt(at)
    await untilLinked(replica)
    const fromMs = nowMs()
    try {
      await this.#faults.killAndRestart([{ server: master }], async () => {
        await ask(replica, 'CLUSTER', 'FAILOVER', 'TAKEOVER')
        await meanwhile()
      })
      await this.#swap(at, { master: replica, replica: master })
    } finally {
      this.losses.push({ fromMs, toMs: nowMs() })
    }
    return true
  }

  async #swap(at: number, shard: Shard): Promise<void> {
    Object.assign(this.#shardAt(at), shard)
    await until(async () => (await roleOf(shard.replica)) === 'slave', {
      timeoutMs: PATIENCE_MS,
      failure: () => 'the old master does not follow the new one',
    })
  }

  #shardAt(at: number): Shard {
    const shard = this.#shards[at]
    if (shard === undefined) throw new RangeError(`there is no shard ${at}`)
    return shard
  }
}

async function joinReplica({ master, replica }: Shard): Promise<void> {
  const id = String(await ask(master, 'CLUSTER', 'MYID'))
  await ask(replica, 'CLUSTER', 'MEET', '127.0.0.1', master.port)
  const patience = { timeoutMs: PATIENCE_MS, failure: () => 'a replica does not join the Cluster' }
  await until(() => isAnswered(ask(replica, 'CLUSTER', 'REPLICATE', id)), patience)
  await untilLinked(replica)
}

/** A target that is out of memory refuses keys for a while. */
async function carry(from: Server, to: Server, keys: readonly string[]): Promise<void> {
  if (keys.length > 0) await isAnswered(ask(from, 'MIGRATE', '127.0.0.1', to.port, '', 0, 5_000, 'KEYS', ...keys))
}

const roleOf = async (server: Server): Promise<string | undefined> => (await replicationOf(server)).get('role')
