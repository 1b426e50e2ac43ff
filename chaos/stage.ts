import type { Loss } from './check.ts'
import type { ClientPlan } from './clients.ts'
import type { Draw } from './draw.ts'
import type { Links } from './links.ts'
import type { LoadMeter } from './load.ts'
import type { Fault, Recipe } from './plan.ts'
import type { RecordServer } from './record.ts'

/** The servers of a scenario, and the faults that can be injected into them. */
export interface Stage extends AsyncDisposable {
  readonly links: Links
  /** Times in which a server was lost with data that it had not replicated. Filled by the faults that do so. */
  readonly losses: Loss[]
  /**
   * Injects a fault into the servers, and resolves at its end. `signal` ends it early. Resolves with false if the fault
   * is not possible now, because of another fault or of the scenario's rules.
   */
  apply(fault: Fault, signal: AbortSignal): Promise<boolean>
  version(): Promise<string>
  /** The records that the holders increment, if the scenario has them. */
  readonly records?: RecordServer
  /** Settings of the clients that are known only when the servers run. */
  readonly clientSettings?: { readonly path?: string; readonly recordPort?: number }
  /** Where the harness reaches the store itself, without a fault. Only for a store with a queue. */
  readonly queueUrl?: string | undefined
}

/** The setting of one episode, drawn from the seed. */
export interface Setting {
  /** The number of servers: the nodes of Redlock, or a master with its replica. */
  servers: number
  clients: ClientPlan[]
  /** Redlock: no lease is longer than this, and a node that has forgotten does not vote for this time. */
  longestTtlMs: number
}

export interface SettingOptions {
  clients: number
  tasks: number
  names: number
  longestTtlSeconds: number | undefined
}

export interface Scenario {
  drawSetting(draw: Draw, options: SettingOptions): Setting
  recipes(setting: Setting, options: { isLossy: boolean }): Recipe[]
  open(setting: Setting, meter: LoadMeter): Promise<Stage>
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
