import type { Kept } from '../client-settings.ts'
import type { ClientPlan } from '../clients.ts'
import type { StoreSettings } from '../connect.ts'
import type { Draw } from '../draw.ts'
import { range } from '../plan.ts'
import type { Setting, SettingOptions } from '../stage.ts'

type Through = StoreSettings['through']

export interface Choices {
  driver: StoreSettings['driver']
  topology?: string
  servers: number
  /** How clients in Node connect, and how often. */
  node: readonly (readonly [Through, number])[]
  /** How clients in Python connect. */
  python?: readonly Through[]
  nodeTimeoutSeconds?: number
  /** What each client holds for as long as it can. */
  keeps?: readonly Kept['kind'][]
  /** A draw decides which clients wait for a replica. */
  canConfirm?: boolean
}

/** Draws the clients of an episode. */
export function drawSetting(draw: Draw, options: SettingOptions, choices: Choices): Setting {
  const { driver, topology = '', servers, nodeTimeoutSeconds = 1, keeps = [], canConfirm = false } = choices
  const { clients, tasks, isMixed, longestTtlSeconds } = options
  const callTimeoutSeconds = draw.one([1.5, 5])
  // Short, so that the waiters of killed processes do not delay the others for most of the time.
  const waiterTtlSeconds = draw.one([2, 4])
  const confirms = canConfirm && draw.chance(0.4)
  const names = range(options.names).map((name) => `order:${name}`)
  const plans = range(clients).map((client): ClientPlan => {
    const isPython = isMixed && client % 2 === 1
    const confirmed = confirms && !isPython && draw.chance(0.4)
    const through = draw.weighted(choices.node.filter(([name]) => !confirmed || name !== 'url'))
    return {
      settings: {
        language: isPython ? 'python' : 'node',
        driver,
        through: isPython ? draw.one(choices.python ?? ['url']) : through,
        names,
        kept: isPython ? [] : keeps.map((kind) => ({ name: `keep:${client}:${kind}`, kind })),
        tasks,
        ttlSeconds: { least: longestTtlSeconds / 2, most: longestTtlSeconds },
        nodeTimeoutSeconds,
        callTimeoutSeconds,
        waiterTtlSeconds,
        confirmed,
      },
    }
  })
  return { topology, servers, clients: plans, names, longestTtlMs: longestTtlSeconds * 1_000 }
}
