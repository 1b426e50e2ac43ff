import { cpSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { type ShiftedClock, shiftedClock } from '../../test/harness/clock-shim.ts'
import { until } from '../../test/harness/processes.ts'
import { type Server, startRedis } from '../../test/harness/servers.ts'
import { askRedis, type RedisReply } from '../../test/harness/wire.ts'
import type { Spared } from '../checks/kept.ts'
import type { Data, Fault } from '../faults.ts'
import { nowMs } from '../history.ts'
import type { LoadMeter } from '../load.ts'
import { Losses, SETTLE_MS } from '../losses.ts'
import { pause } from '../stage.ts'

/** How long a request of the harness itself may take on a busy machine. */
export const PATIENCE_MS = 20_000

export interface RedisNode {
  readonly server: Server
  /** With it, the server's clock can be stepped. */
  readonly clock?: ShiftedClock
}

/** The settings with which a server loses nothing when it is killed, and a replica begins to copy at once. */
export const DURABLE = { appendonly: 'yes', appendfsync: 'always', 'repl-diskless-sync-delay': '0' }

/** A server that keeps every write over a kill, and whose clock can be stepped. */
export async function startRedisNode(settings: Record<string, string> = {}): Promise<RedisNode> {
  const clock = await shiftedClock()
  try {
    return { server: await startRedis({ settings: { ...DURABLE, ...settings }, clock }), clock }
  } catch (error) {
    clock[Symbol.dispose]()
    throw error
  }
}

export async function endRedisNodes(nodes: readonly RedisNode[], meter: LoadMeter): Promise<void> {
  for (const { server } of nodes) meter.add('servers', server.pid)
  await Promise.all(nodes.map(({ server }) => server[Symbol.asyncDispose]()))
  for (const { clock } of nodes) clock?.[Symbol.dispose]()
}

export interface Restart {
  data: Data
  /** How old the data is. */
  lagMs?: number
  downMs: number
  /** From then on, the clock is wrong by this. */
  byMs?: number
  /** Is called when the servers are down. */
  onDown?(): void
}

/** What the faults of Redis servers need, and what they leave behind. */
export class RedisFaults {
  readonly losses = new Losses()
  readonly spared: Spared[] = []
  readonly #meter: LoadMeter

  readonly #graceMs: number | undefined

  /**
   * With `graceMs`, a server that has forgotten its leases does not grant any for this time (Redlock). So the loss of
   * one server excuses nothing, and no other server may forget meanwhile.
   */
  constructor(meter: LoadMeter, { graceMs }: { graceMs?: number } = {}) {
    this.#meter = meter
    this.#graceMs = graceMs
  }

  /** `nodes` are those that the fault names. Undefined for a fault that not every topology has. */
  apply(fault: Fault, nodes: readonly RedisNode[], signal: AbortSignal): Promise<boolean> | undefined {
    switch (fault.kind) {
      case 'server-stalled':
        return this.stall(nodes, () => pause(fault.forMs, signal))
      case 'server-killed':
        return this.killAndRestart(nodes, () => pause(fault.downMs, signal))
      case 'restarted-empty':
        return this.#forget(() => this.restartWith({ ...fault, data: 'none' }, nodes, signal))
      case 'data-flushed':
        return this.#forget(() => onAny(nodes, 'FLUSHALL'))
      case 'server-clock-stepped':
        return this.losses.steppingClock(fault.byMs, {
          shift: (toMs) => this.shiftClocks(nodes, toMs),
          meanwhile: () => pause(fault.forMs, signal),
        })
      case 'restarted-at-wrong-time':
        return this.#restartAtWrongTime(fault, nodes, signal)
      case 'memory-full':
        return this.sparing({ fault }, () => this.#fillMemory(nodes, () => pause(fault.forMs, signal)))
      case 'scripts-flushed':
        return onAny(nodes, 'SCRIPT', 'FLUSH')
      case 'listeners-killed':
        return onAny(nodes, 'CLIENT', 'KILL', 'TYPE', 'pubsub')
      case 'connections-killed':
        return onAny(nodes, 'CLIENT', 'KILL', 'TYPE', 'normal')
      case 'out-of-memory':
        return this.#fillMemory(nodes, () => pause(fault.forMs, signal))
      default:
        return undefined
    }
  }

  async stall(nodes: readonly RedisNode[], meanwhile: () => Promise<void>): Promise<boolean> {
    for (const { server } of nodes) await server.pause()
    await meanwhile()
    for (const { server } of nodes) server.resume()
    return true
  }

  async killAndRestart(nodes: readonly RedisNode[], meanwhile: () => Promise<void>): Promise<boolean> {
    for (const { server } of nodes) this.#meter.add('servers', server.pid)
    await Promise.all(nodes.map(({ server }) => server.kill()))
    await meanwhile()
    await Promise.all(nodes.map(({ server }) => server.restart()))
    return true
  }

  async configure(
    nodes: readonly RedisNode[],
    setting: string,
    { during, after }: { during: string; after: string },
    meanwhile: () => Promise<void>,
  ): Promise<boolean> {
    if (!(await onAny(nodes, 'CONFIG', 'SET', setting, during))) return false
    await meanwhile()
    // A server may be down or restarted meanwhile.
    for (const { server } of nodes) {
      await until(() => isAnswered(ask(server, 'CONFIG', 'SET', setting, after)), {
        timeoutMs: PATIENCE_MS,
        failure: () => `cannot restore ${setting}`,
      })
    }
    return true
  }

  /** Work during which leases that are renewed must be kept. If it fails half-way, it proves nothing. */
  async sparing(what: Omit<Spared, 'fromMs' | 'toMs'>, work: () => Promise<boolean>): Promise<boolean> {
    const fromMs = nowMs()
    const isDone = await work()
    if (isDone) this.spared.push({ ...what, fromMs, toMs: nowMs() })
    return isDone
  }

  async restartWith(
    { data, lagMs = 0, downMs, byMs = 0, onDown }: Restart,
    nodes: readonly RedisNode[],
    signal: AbortSignal,
  ): Promise<boolean> {
    const folders = await Promise.all(nodes.map(({ server }) => folderOf(server)))
    const all = folders.map((folder) => ({ now: join(folder, 'appendonlydir'), older: join(folder, 'older') }))
    if (data === 'older') for (const { now, older } of all) cpSync(now, older, { recursive: true })
    await pause(lagMs, signal)
    return this.killAndRestart(nodes, async () => {
      if (data !== 'kept') for (const { now } of all) rmSync(now, { recursive: true, force: true })
      if (data === 'older') for (const { now, older } of all) renameSync(older, now)
      for (const { clock } of nodes) clock?.shift(byMs)
      onDown?.()
      await pause(downMs, signal)
    })
  }

  async shiftClocks(nodes: readonly RedisNode[], toMs: number): Promise<void> {
    for (const { clock } of nodes) clock?.shift(toMs)
    // A call that the server has begun may still see the old time.
    await onAny(nodes, 'PING')
  }

  /** As a step of the clock: all leases end when it goes forwards. Tokens are ahead of it for as long as it was. */
  #restartAtWrongTime(
    fault: Fault & { kind: 'restarted-at-wrong-time' },
    nodes: readonly RedisNode[],
    signal: AbortSignal,
  ): Promise<boolean> {
    const { byMs, wrongMs } = fault
    const restart = (): Promise<boolean> => this.restartWith(fault, nodes, signal)
    const setRight = (): Promise<boolean> => this.shiftClocks(nodes, 0).then(() => true)
    const losing = (work: () => Promise<boolean>): Promise<boolean> => this.losses.losing({ isOfConfirmed: true }, work)
    return this.losses.alone(Math.max(byMs, 0) + SETTLE_MS, async () => {
      await (byMs > 0 ? losing(restart) : restart())
      await pause(wrongMs, signal)
      return byMs < 0 ? losing(setRight) : setRight()
    })
  }

  #fillMemory(nodes: readonly RedisNode[], meanwhile: () => Promise<void>): Promise<boolean> {
    return this.configure(nodes, 'maxmemory', { during: '1', after: '0' }, meanwhile)
  }

  #forget(work: () => Promise<boolean>): Promise<boolean> {
    if (this.#graceMs !== undefined) return this.losses.alone(this.#graceMs, work)
    return this.losses.alone(SETTLE_MS, () => this.losses.losing({ isOfConfirmed: true }, work))
  }
}

async function folderOf(server: Server): Promise<string> {
  const [, folder] = (await ask(server, 'CONFIG', 'GET', 'dir')) as string[]
  if (folder === undefined) throw new Error(`the Redis at port ${server.port} does not say where its data is`)
  return folder
}

/** Asks again if another fault has killed the connection. */
export async function ask(server: { port: number }, ...command: (string | number)[]): Promise<RedisReply> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await askRedis({ port: server.port, timeoutMs: PATIENCE_MS }, ...command)
    } catch (error) {
      const isKilled = /closed the connection|ECONNRESET|EPIPE/.test(String(error))
      if (!isKilled || attempt === 5) throw error
    }
  }
}

/** For a command that may fail, because the server refuses it or is down. */
export const isAnswered = (asked: Promise<unknown>): Promise<boolean> =>
  asked.then(
    () => true,
    () => false,
  )

/** Sends a command to all of them. False if none has done it. */
async function onAny(nodes: readonly RedisNode[], ...command: (string | number)[]): Promise<boolean> {
  const answered = await Promise.all(nodes.map(({ server }) => isAnswered(ask(server, ...command))))
  return answered.includes(true)
}

export async function redisVersion({ port }: { port: number }): Promise<string> {
  const info = String(await ask({ port }, 'INFO', 'server'))
  return `redis ${/redis_version:(\S+)/.exec(info)?.[1] ?? 'unknown'}`
}
