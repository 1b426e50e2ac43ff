import { until } from '../../test/harness/processes.ts'
import type { Server } from '../../test/harness/servers.ts'
import type { Fault } from '../faults.ts'
import { nowMs } from '../history.ts'
import { Links } from '../links.ts'
import type { LoadMeter } from '../load.ts'
import { SETTLE_MS } from '../losses.ts'
import { range } from '../plan.ts'
import { pause, type Setting, type Stage, Turns } from '../stage.ts'
import {
  ask,
  endRedisNodes,
  isAnswered,
  PATIENCE_MS,
  RedisFaults,
  type RedisNode,
  redisVersion,
  startRedisNode,
} from './redis-node.ts'

/** A master and its replica behind one address, as behind a load balancer. */
export class AddressStage implements Stage {
  readonly links: Links
  readonly #clients: readonly number[]
  readonly #meter: LoadMeter
  readonly #faults: RedisFaults
  #master: RedisNode
  #replica: RedisNode
  /** Changes of roles are serial: each needs a master, and a replica that has caught up. */
  readonly #turns = new Turns()

  private constructor(clients: number, nodes: readonly [RedisNode, RedisNode], links: Links, meter: LoadMeter) {
    this.#clients = range(clients)
    this.#master = nodes[0]
    this.#replica = nodes[1]
    this.links = links
    this.#meter = meter
    this.#faults = new RedisFaults(meter)
  }

  static async open({ clients }: Setting, meter: LoadMeter): Promise<AddressStage> {
    const nodes = await Promise.all([startRedisNode(), startRedisNode()])
    const links = await Links.open(clients.length, [nodes[0].server.port])
    const stage = new AddressStage(clients.length, nodes, links, meter)
    await stage.#follow(nodes[1])
    await stage.#untilInStep()
    return stage
  }

  get losses() {
    return this.#faults.losses.all
  }

  get spared() {
    return this.#faults.spared
  }

  get url() {
    return this.#master.server.url
  }

  async apply(fault: Fault, signal: AbortSignal): Promise<boolean> {
    switch (fault.kind) {
      case 'failover':
        return this.#turns.take(signal, () => this.#failOver(fault, signal))
      case 'demoted-and-back':
        return this.#turns.take(signal, async () => {
          const { server } = this.#master
          // Nothing listens on port 1: the server is a read-only replica that copies nothing.
          await ask(server, 'REPLICAOF', '127.0.0.1', 1)
          await pause(fault.forMs, signal)
          await ask(server, 'REPLICAOF', 'NO', 'ONE')
          return true
        })
      case 'too-few-replicas':
        if (fault.by === 'stalled-replica') {
          return this.#turns.take(signal, () => this.#stallReplica(fault.forMs, signal))
        }
        return this.#faults.configure([this.#master], 'min-replicas-to-write', { during: '2', after: '0' }, () =>
          pause(fault.forMs, signal),
        )
      case 'master-killed':
        return this.#turns.take(signal, () =>
          this.#faults.losses.alone(SETTLE_MS, () => this.#loseMaster(fault.lagMs, fault.downMs, signal)),
        )
      case 'server-stalled':
      case 'server-clock-stepped':
      case 'data-flushed':
        return this.#turns.take(signal, () => this.#common(fault, signal))
      case 'server-killed':
      case 'restarted-empty':
      case 'restarted-at-wrong-time':
        return this.#turns.take(signal, async () => {
          const isDone = await this.#common(fault, signal)
          await this.#follow(this.#replica)
          return isDone
        })
      default:
        return this.#common(fault, signal)
    }
  }

  version(): Promise<string> {
    return redisVersion(this.#master.server)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.links[Symbol.asyncDispose]()
    await endRedisNodes([this.#master, this.#replica], this.#meter)
  }

  async #common(fault: Fault, signal: AbortSignal): Promise<boolean> {
    const both = [this.#master, this.#replica]
    const at = 'servers' in fault ? fault.servers : 'server' in fault ? [fault.server] : []
    const done = this.#faults.apply(
      fault,
      at.flatMap((each) => both[each] ?? []),
      signal,
    )
    if (done === undefined) throw new Error(`redis behind one address has no fault ${fault.kind}`)
    return done
  }

  async #follow({ server }: RedisNode): Promise<void> {
    await ask(server, 'REPLICAOF', '127.0.0.1', this.#master.server.port)
  }

  /** Waits until the replica has all writes of the master. Under load this is true only for a moment. */
  #untilInStep(): Promise<void> {
    return until(() => isInStep(this.#master.server, this.#replica.server), {
      timeoutMs: PATIENCE_MS,
      failure: () => 'the replica does not catch up',
    })
  }

  /** A planned failover. No confirmed write of the old master is lost, and there are never two masters. */
  async #failOver(fault: Fault & { kind: 'failover' }, signal: AbortSignal): Promise<boolean> {
    const [old, successor] = [this.#master, this.#replica]
    await untilLinked(successor.server)
    if (fault.by === 'replicaof') await this.#failOverByRoles(old.server, successor.server)
    else if (!(await failOverByCommand(old.server, successor.server))) return false
    this.#master = successor
    this.#replica = old
    await pause(fault.gapMs, signal)
    const everyWay = { clients: this.#clients, servers: [0] }
    this.links.redirect(everyWay, successor.server.port)
    await pause(fault.leaveMs, signal)
    if (fault.leave === 'none') this.links.cut(everyWay)
    if (fault.leave === 'some') this.links.cut({ ...everyWay, clients: fault.cut })
    if (fault.leave === 'subscriptions') await ask(old.server, 'CLIENT', 'KILL', 'TYPE', 'normal')
    if (fault.leave === 'commands') await ask(old.server, 'CLIENT', 'KILL', 'TYPE', 'pubsub')
    return true
  }

  /** As an operator does it: stop writes, wait for the replica, demote the old master, promote the new one. */
  async #failOverByRoles(old: Server, successor: Server): Promise<void> {
    const pausedAtMs = nowMs()
    await ask(old, 'CLIENT', 'PAUSE', PATIENCE_MS * 2, 'WRITE')
    try {
      await this.#untilInStep()
      await ask(old, 'REPLICAOF', '127.0.0.1', successor.port)
      const isTooLate = nowMs() - pausedAtMs > PATIENCE_MS * 2
      if (isTooLate) this.losses.push({ fromMs: pausedAtMs, toMs: nowMs() })
      await ask(successor, 'REPLICAOF', 'NO', 'ONE')
    } finally {
      await ask(old, 'CLIENT', 'UNPAUSE')
    }
  }

  async #stallReplica(forMs: number, signal: AbortSignal): Promise<boolean> {
    const { server } = this.#master
    await ask(server, 'CONFIG', 'SET', 'min-replicas-max-lag', 1)
    await ask(server, 'CONFIG', 'SET', 'min-replicas-to-write', 1)
    await this.#faults.stall([this.#replica], () => pause(forMs, signal))
    await ask(server, 'CONFIG', 'SET', 'min-replicas-to-write', 0)
    return true
  }

  /** An unplanned failover. The writes of the last `lagMs` are lost. The old master restarts as a replica. */
  async #loseMaster(lagMs: number, downMs: number, signal: AbortSignal): Promise<boolean> {
    const [old, successor] = [this.#master, this.#replica]
    await untilLinked(successor.server)
    const fromMs = nowMs()
    // It stays a replica, but of a server that does not exist.
    await ask(successor.server, 'REPLICAOF', '127.0.0.1', 1)
    await pause(lagMs, signal)
    return this.#faults
      .killAndRestart([old], async () => {
        await ask(successor.server, 'REPLICAOF', 'NO', 'ONE')
        this.losses.push({ fromMs, toMs: nowMs() })
        this.#master = successor
        this.#replica = old
        this.links.redirect({ clients: this.#clients, servers: [0] }, successor.server.port)
        await pause(downMs, signal)
      })
      .then(async (isDone) => {
        await this.#follow(old)
        return isDone
      })
  }
}

/** Redis' own FAILOVER stops writes, waits for the replica and changes the roles. False if it gave up. */
async function failOverByCommand(old: Server, successor: Server): Promise<boolean> {
  const command = ['FAILOVER', 'TO', '127.0.0.1', successor.port, 'TIMEOUT', PATIENCE_MS] as const
  if (!(await isAnswered(ask(old, ...command)))) return false
  const patience = { timeoutMs: PATIENCE_MS * 2, failure: () => 'FAILOVER did not end' }
  await until(async () => (await replicationOf(old)).get('master_failover_state') === 'no-failover', patience)
  if ((await replicationOf(old)).get('role') === 'master') return false
  await until(async () => (await replicationOf(successor)).get('role') === 'master', patience)
  return true
}

async function isInStep(master: Server, replica: Server): Promise<boolean> {
  const [first, second] = [await replicationOf(master), await replicationOf(replica)]
  return (
    second.get('master_link_status') === 'up' && second.get('slave_repl_offset') === first.get('master_repl_offset')
  )
}

/** Waits until a replica copies its master. */
export const untilLinked = (replica: Server): Promise<void> =>
  until(async () => (await replicationOf(replica)).get('master_link_status') === 'up', {
    timeoutMs: PATIENCE_MS,
    failure: () => 'the replica is not connected',
  })

export async function replicationOf(server: Server): Promise<Map<string, string>> {
  const info = String(await ask(server, 'INFO', 'replication'))
  return new Map(info.split('\r\n').map((line) => line.split(':') as [string, string]))
}
