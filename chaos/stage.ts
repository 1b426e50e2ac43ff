import type { Loss } from './check.ts'
import type { ClientPlan } from './clients.ts'
import type { Draw } from './draw.ts'
import type { Links } from './links.ts'
import type { LoadMeter } from './load.ts'
import type { Fault, Recipe } from './plan.ts'

/** What a scenario's servers are, and what can be done to them. */
export interface Stage extends AsyncDisposable {
  readonly links: Links
  /** Times in which a server was lost with what it had not replicated. Filled by faults that do so. */
  readonly losses: Loss[]
  /**
   * Does a fault to the servers, from its beginning to its end. `signal` ends it early. False if it could not be done
   * now: another fault is under way, or the rules of the scenario forbid it.
   */
  apply(fault: Fault, signal: AbortSignal): Promise<boolean>
  version(): Promise<string>
}

/** One episode's setting, drawn from the seed. */
export interface Setting {
  /** How many servers: what Redlock asks, or a master with its replica. */
  servers: number
  clients: ClientPlan[]
  /** Of Redlock: no lease is longer, and a node that has forgotten does not vote for so long. */
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

/** Resolves after so long, or when the episode ends. */
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
