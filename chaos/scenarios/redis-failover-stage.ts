import { until } from '../../test/harness/processes.ts'
import type { Server } from '../../test/harness/servers.ts'
import { askRedis, type RedisReply } from '../../test/harness/wire.ts'
import type { Loss } from '../check.ts'
import { nowMs } from '../history.ts'
import type { Links } from '../links.ts'
import type { LoadMeter } from '../load.ts'
import { type Fault, range } from '../plan.ts'
import { pause, type Setting, type Stage } from '../stage.ts'
import { redisVersion } from './redlock.ts'

/** How long a request of the harness itself may take on a busy machine. */
const PATIENCE_MS = 20_000

/** The master and the replica, and the faults that can be injected into them. */
export class FailoverStage implements Stage {
  readonly links: Links
  readonly losses: Loss[] = []
  readonly #clients: readonly number[]
  readonly #meter: LoadMeter
  #master: Server
  #replica: Server
  /** Changes of roles are serial: each needs a master, and a replica that has caught up. */
  #turn: Promise<unknown> = Promise.resolve()

  constructor(
    setting: Setting,
    { master, replica, links, meter }: { master: Server; replica: Server; links: Links; meter: LoadMeter },
  ) {
    this.#clients = range(setting.clients.length)
    this.#master = master
    this.#replica = replica
    this.links = links
    this.#meter = meter
  }

  async apply(fault: Fault, signal: AbortSignal): Promise<boolean> {
    switch (fault.kind) {
      case 'failover':
        return this.#inTurn(signal, () => this.#failOver(fault, signal))
      case 'demoted-and-back':
        return this.#inTurn(signal, async () => {
          const master = this.#master
          // Nothing listens on port 1: the server is a read-only replica that copies nothing.
          await ask(master, 'REPLICAOF', '127.0.0.1', 1)
          await pause(fault.forMs, signal)
          await ask(master, 'REPLICAOF', 'NO', 'ONE')
          return true
        })
      case 'server-stalled':
        return this.#inTurn(signal, async () => {
          await this.#master.pause()
          await pause(fault.forMs, signal)
          this.#master.resume()
          return true
        })
      case 'too-few-replicas':
        if (fault.by === 'stalled-replica') return this.#inTurn(signal, () => this.#stallReplica(fault.forMs, signal))
        return this.#configure(this.#master, 'min-replicas-to-write', { during: '2', after: '0' }, fault.forMs, signal)
      case 'out-of-memory':
        return this.#configure(this.#master, 'maxmemory', { during: '1', after: '0' }, fault.forMs, signal)
      case 'connections-killed':
        return isAnswered(ask(fault.on === 'master' ? this.#master : this.#replica, 'CLIENT', 'KILL', 'TYPE', fault.of))
      case 'scripts-flushed': {
        // On the replica, too: its script is then missing after the next failover.
        const both = [this.#master, this.#replica].map((server) => isAnswered(ask(server, 'SCRIPT', 'FLUSH')))
        return (await Promise.all(both)).includes(true)
      }
      case 'master-killed':
        return this.#inTurn(signal, () => this.#loseMaster(fault, signal))
      default:
        throw new Error(`redis-failover has no fault ${fault.kind}`)
    }
  }

  async version(): Promise<string> {
    return redisVersion(this.#master.port)
  }

  /** Waits until the replica has all writes of the master. Under load this is true only for a moment. */
  untilInStep(): Promise<void> {
    return until(() => isInStep(this.#master, this.#replica), {
      timeoutMs: PATIENCE_MS,
      failure: () => 'the replica does not catch up',
    })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const server of [this.#master, this.#replica]) this.#meter.add('servers', server.pid)
    await this.links[Symbol.asyncDispose]()
    await Promise.all([this.#master, this.#replica].map((server) => server[Symbol.asyncDispose]()))
  }

  /** A planned failover. No confirmed write of the old master is lost, and there are never two masters. */
  async #failOver(fault: Fault & { kind: 'failover' }, signal: AbortSignal): Promise<boolean> {
    const [old, successor] = [this.#master, this.#replica]
    await until(() => isLinked(successor), { timeoutMs: PATIENCE_MS, failure: () => 'the replica is not connected' })
    if (fault.by === 'replicaof') await this.#failOverByRoles(old, successor)
    else if (!(await failOverByCommand(old, successor))) return false
    this.#master = successor
    this.#replica = old
    await pause(fault.gapMs, signal)
    this.links.redirect(this.#clients, successor.port)
    await pause(fault.leaveMs, signal)
    const everyWay = { clients: this.#clients, servers: [0] }
    if (fault.leave === 'none') this.links.cut(everyWay)
    if (fault.leave === 'some') this.links.cut({ ...everyWay, clients: fault.cut })
    if (fault.leave === 'subscriptions') await ask(old, 'CLIENT', 'KILL', 'TYPE', 'normal')
    if (fault.leave === 'commands') await ask(old, 'CLIENT', 'KILL', 'TYPE', 'pubsub')
    return true
  }

  /** As an operator does it: stop writes, wait for the replica, demote the old master, promote the new one. */
  async #failOverByRoles(old: Server, successor: Server): Promise<void> {
    const pausedAtMs = nowMs()
    await ask(old, 'CLIENT', 'PAUSE', PATIENCE_MS * 2, 'WRITE')
    try {
      await this.untilInStep()
      await ask(old, 'REPLICAOF', '127.0.0.1', successor.port)
      const isTooLate = nowMs() - pausedAtMs > PATIENCE_MS * 2
      if (isTooLate) this.losses.push({ fromMs: pausedAtMs, toMs: nowMs() })
      await ask(successor, 'REPLICAOF', 'NO', 'ONE')
    } finally {
      await ask(old, 'CLIENT', 'UNPAUSE')
    }
  }

  async #stallReplica(forMs: number, signal: AbortSignal): Promise<boolean> {
    const [master, replica] = [this.#master, this.#replica]
    await ask(master, 'CONFIG', 'SET', 'min-replicas-max-lag', 1)
    await ask(master, 'CONFIG', 'SET', 'min-replicas-to-write', 1)
    await replica.pause()
    await pause(forMs, signal)
    replica.resume()
    await ask(master, 'CONFIG', 'SET', 'min-replicas-to-write', 0)
    return true
  }

  /**
   * An unplanned failover. The writes of the last `lagMs` are lost. The old master restarts empty, as a replica.
   */
  async #loseMaster({ lagMs, downMs }: { lagMs: number; downMs: number }, signal: AbortSignal): Promise<boolean> {
    const [old, successor] = [this.#master, this.#replica]
    await until(() => isLinked(successor), { timeoutMs: PATIENCE_MS, failure: () => 'the replica is not connected' })
    const fromMs = nowMs()
    // It stays a replica, but of a server that does not exist.
    await ask(successor, 'REPLICAOF', '127.0.0.1', 1)
    await pause(lagMs, signal)
    this.#meter.add('servers', old.pid)
    await old.kill()
    await ask(successor, 'REPLICAOF', 'NO', 'ONE')
    this.losses.push({ fromMs, toMs: nowMs() })
    this.#master = successor
    this.#replica = old
    this.links.redirect(this.#clients, successor.port)
    await pause(downMs, signal)
    await old.restart()
    await ask(old, 'REPLICAOF', '127.0.0.1', successor.port)
    return true
  }

  async #configure(
    server: Server,
    setting: string,
    { during, after }: { during: string; after: string },
    forMs: number,
    signal: AbortSignal,
  ): Promise<boolean> {
    if (!(await isAnswered(ask(server, 'CONFIG', 'SET', setting, during)))) return false
    await pause(forMs, signal)
    // The server may be down, if masters are killed.
    await until(() => isAnswered(ask(server, 'CONFIG', 'SET', setting, after)), {
      timeoutMs: PATIENCE_MS,
      failure: () => `cannot restore ${setting}`,
    })
    return true
  }

  /** Returns false if the episode ended before its turn. */
  async #inTurn(signal: AbortSignal, work: () => Promise<boolean>): Promise<boolean> {
    const turn = this.#turn
      .catch(() => {})
      .then(async () => {
        return signal.aborted ? false : work()
      })
    this.#turn = turn
    return turn
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

const isLinked = async (replica: Server): Promise<boolean> =>
  (await replicationOf(replica)).get('master_link_status') === 'up'

async function replicationOf(server: Server): Promise<Map<string, string>> {
  const info = String(await ask(server, 'INFO', 'replication'))
  return new Map(info.split('\r\n').map((line) => line.split(':') as [string, string]))
}

function ask(server: Server, ...command: (string | number)[]): Promise<RedisReply> {
  return askRedis({ port: server.port, timeoutMs: PATIENCE_MS }, ...command)
}

/** For a command that may fail, because the server refuses it or is down. */
const isAnswered = (asked: Promise<unknown>): Promise<boolean> =>
  asked.then(
    () => true,
    () => false,
  )
