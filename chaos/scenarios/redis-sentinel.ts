import { until } from '../../test/harness/processes.ts'
import { type RedisSentinel, type Server, startRedisSentinel } from '../../test/harness/servers.ts'
import type { Fault } from '../faults.ts'
import { nowMs } from '../history.ts'
import { Links } from '../links.ts'
import type { LoadMeter } from '../load.ts'
import { pause, type Setting, type Stage, Turns } from '../stage.ts'
import { replicationOf } from './redis-address.ts'
import { ask, DURABLE, isAnswered, PATIENCE_MS, RedisFaults, redisVersion } from './redis-node.ts'

/** How often the Sentinels are asked for the master, and how long before that a failover may have begun. */
const WATCH_MS = 300
const UNSEEN_MS = 10_000

/** A master with two replicas and three Sentinels. Each client reaches each of the servers through its own proxy. */
export class SentinelStage implements Stage {
  readonly links: Links
  readonly #sentinel: RedisSentinel
  readonly #meter: LoadMeter
  readonly #faults: RedisFaults
  readonly #turns = new Turns()
  readonly #watch: NodeJS.Timeout
  #master: Server
  #isFailingOver = false

  private constructor(sentinel: RedisSentinel, links: Links, meter: LoadMeter) {
    this.#sentinel = sentinel
    this.#master = sentinel.master
    this.links = links
    this.#meter = meter
    this.#faults = new RedisFaults(meter)
    this.#watch = setInterval(() => void this.#look().catch(() => {}), WATCH_MS)
  }

  static async open({ clients }: Setting, meter: LoadMeter): Promise<SentinelStage> {
    const sentinel = await startRedisSentinel({ settings: DURABLE })
    const ports = [sentinel.master, ...sentinel.replicas].map(({ port }) => port)
    return new SentinelStage(sentinel, await Links.open(clients.length, ports), meter)
  }

  get losses() {
    return this.#faults.losses.all
  }

  get spared() {
    return this.#faults.spared
  }

  get url() {
    return this.#master.url
  }

  get clientSettings() {
    const { masterName, sentinels } = this.#sentinel
    return {
      announcedPorts: this.#servers.map(({ port }) => port),
      sentinel: { masterName, ports: sentinels.map(({ port }) => port) },
    }
  }

  async apply(fault: Fault, signal: AbortSignal): Promise<boolean> {
    if (fault.kind === 'sentinel-failover') {
      return this.#turns.take(signal, () => this.#failOver(fault, signal))
    }
    const inOrder = [this.#master, ...this.#servers.filter((server) => server !== this.#master)]
    const at = 'servers' in fault ? fault.servers : 'server' in fault ? [fault.server] : []
    const nodes = at.flatMap((each) => inOrder[each] ?? []).map((server) => ({ server }))
    const work = (): Promise<boolean> => {
      const done = this.#faults.apply(fault, nodes, signal)
      if (done === undefined) throw new Error(`redis behind Sentinel has no fault ${fault.kind}`)
      return done
    }
    return fault.kind === 'server-stalled' || fault.kind === 'data-flushed' ? this.#turns.take(signal, work) : work()
  }

  version(): Promise<string> {
    return redisVersion(this.#master)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#watch)
    for (const { pid } of [...this.#servers, ...this.#sentinel.sentinels]) this.#meter.add('servers', pid)
    await this.links[Symbol.asyncDispose]()
    await this.#sentinel[Symbol.asyncDispose]()
  }

  get #servers(): Server[] {
    return [this.#sentinel.master, ...this.#sentinel.replicas]
  }

  /** Until the old master follows the new one, both may grant. What the old one grants is lost. */
  async #failOver(
    { by, lagMs }: { by: 'command' | 'stalled-master' | 'killed-master'; lagMs: number },
    signal: AbortSignal,
  ): Promise<boolean> {
    const old = this.#master
    const fromMs = nowMs()
    this.#isFailingOver = true
    try {
      if (by === 'command') {
        const [first] = this.#sentinel.sentinels
        if (!first || !(await isAnswered(ask(first, 'SENTINEL', 'FAILOVER', this.#sentinel.masterName)))) return false
      } else if (by === 'stalled-master') {
        await old.pause()
      } else {
        // The replicas stay replicas, but of a server that does not exist.
        const replicas = this.#servers.filter((server) => server !== old)
        for (const replica of replicas) await ask(replica, 'REPLICAOF', '127.0.0.1', 1)
        await pause(lagMs, signal)
        this.#meter.add('servers', old.pid)
        await old.kill()
      }
      await until(async () => (await this.#currentMaster()) !== old, {
        timeoutMs: PATIENCE_MS,
        failure: () => `the Sentinels did not fail over (${by})`,
      })
      this.#master = await this.#currentMaster()
    } finally {
      if (by === 'stalled-master') old.resume()
      if (by === 'killed-master') await old.restart()
      for (const server of this.#servers) {
        if (server === this.#master) continue
        const follows = (await replicationOf(server)).get('master_port') === String(this.#master.port)
        if (!follows) await ask(server, 'REPLICAOF', '127.0.0.1', this.#master.port)
      }
      this.losses.push({ fromMs, toMs: nowMs() })
      this.#isFailingOver = false
    }
    return true
  }

  /** On a busy machine, Sentinels may fail over a healthy master. */
  async #look(): Promise<void> {
    if (this.#isFailingOver) return
    const master = await this.#currentMaster()
    if (this.#isFailingOver || master === this.#master) return
    this.#master = master
    this.losses.push({ fromMs: nowMs() - UNSEEN_MS, toMs: nowMs() + UNSEEN_MS })
  }

  async #currentMaster(): Promise<Server> {
    const port = await this.#sentinel.currentMasterPort()
    return this.#servers.find((server) => server.port === port) ?? this.#master
  }
}
