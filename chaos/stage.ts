import type { Loss } from './check.ts'
import type { Spared } from './checks/kept.ts'
import type { ClientPlan } from './clients.ts'
import type { StoreSettings } from './connect.ts'
import type { Draw } from './draw.ts'
import type { Fault } from './faults.ts'
import type { Links } from './links.ts'
import type { LoadMeter } from './load.ts'
import type { Recipe } from './plan.ts'

/** The servers of an episode, and the faults that can be injected into them. */
export interface Stage extends AsyncDisposable {
  readonly links: Links
  /** Filled by the faults that make the store lose leases. */
  readonly losses: Loss[]
  /** Filled by the faults under which leases must be kept. */
  readonly spared?: readonly Spared[]
  /**
   * Injects a fault into the servers, and resolves at its end. `signal` ends it early. Resolves with false if the fault
   * is not possible now, because of another fault or of the driver's rules.
   */
  apply(fault: Fault, signal: AbortSignal): Promise<boolean>
  version(): Promise<string>
  /** Settings of the clients that are known only when the servers run. */
  readonly clientSettings?: Partial<Pick<StoreSettings, 'path' | 'announcedPorts' | 'sentinel'>>
  /** Where the harness reaches the store itself, without a fault. It changes with a failover. */
  readonly url: string
}

/** The setting of one episode, drawn from the seed. */
export interface Setting {
  /** How the servers are connected, if the driver has several ways. */
  topology: string
  /** The number of servers that each client has a link to. */
  servers: number
  clients: ClientPlan[]
  names: string[]
  /** Redlock: no lease is longer than this, and a node that has forgotten does not vote for this time. */
  longestTtlMs: number
}

export interface SettingOptions {
  /** From 1: the topologies of a driver take turns. */
  episode: number
  clients: number
  tasks: number
  names: number
  longestTtlSeconds: number
  /** Every second client is a Python process. */
  isMixed: boolean
  faults: readonly string[] | undefined
}

/** What a driver needs for chaos. */
export interface Scenario {
  /** Waiters are served first come, first served. */
  readonly hasQueue: boolean
  /** Python clients can take part. */
  readonly isMixable: boolean
  /** A lease ends with the connection of its client, and another client may be granted the lock before it notices. */
  readonly endsWithConnection?: boolean
  /** The clocks of the clients decide when leases expire. They are one clock: that of the machine. */
  readonly hasClientClock?: boolean
  /** The names of all recipes, over all topologies. */
  readonly faultNames: readonly string[]
  drawSetting(draw: Draw, options: SettingOptions): Setting
  recipes(setting: Setting): Recipe[]
  open(setting: Setting, parts: StageParts): Promise<Stage>
}

export interface StageParts {
  meter: LoadMeter
  /** The built package under test. */
  dist: string
}

/** Resolves after `ms`, or when the episode ends. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done)
    if (signal.aborted) done()
  })
}

/** Runs one work after the other. Returns false for a work whose turn comes after the end of the episode. */
export class Turns {
  #last: Promise<unknown> = Promise.resolve()

  take(signal: AbortSignal, work: () => Promise<boolean>): Promise<boolean> {
    const turn = this.#last.catch(() => {}).then(() => (signal.aborted ? false : work()))
    this.#last = turn
    return turn
  }
}
