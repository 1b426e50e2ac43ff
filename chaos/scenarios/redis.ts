import type { Leave } from '../faults.ts'
import { SETTLE_MS } from '../losses.ts'
import { clockRecipe, commonRecipes, ms, type Recipe, range } from '../plan.ts'
import type { Scenario, Setting } from '../stage.ts'
import { AddressStage } from './redis-address.ts'
import { restartRecipes, serverRecipes, wrongTimeMs } from './redis-recipes.ts'
import { SentinelStage } from './redis-sentinel.ts'
import { drawSetting } from './setting.ts'

const TOPOLOGIES = ['address', 'sentinel'] as const

/** Redis behind one address and behind Sentinel. The episodes take turns, unless only one of them has the faults. */
export const redis: Scenario = {
  hasQueue: true,
  isMixable: true,
  get faultNames() {
    const names = TOPOLOGIES.flatMap((topology) => recipesOf(topology, 1).map(({ name }) => name))
    return [...new Set(names)]
  },

  drawSetting(draw, options) {
    const { episode, isMixed, faults } = options
    const possible = TOPOLOGIES.filter((topology) => {
      const names = recipesOf(topology, 1).map(({ name }) => name)
      // Python clients connect to one address.
      return isMixed ? topology === 'address' : (faults?.some((name) => names.includes(name)) ?? true)
    })
    const topology = possible[(episode - 1) % possible.length] ?? 'address'
    const isSentinel = topology === 'sentinel'
    return drawSetting(draw, options, {
      driver: 'redis',
      topology,
      servers: isSentinel ? 3 : 1,
      node: [
        ['ioredis', 4],
        ['redis', 3],
        ['url', isSentinel ? 0 : 2],
      ],
      python: ['redis.asyncio', 'redis', 'url'],
      keeps: ['lock', 'read', 'permits'],
      canConfirm: !isMixed,
    })
  },

  recipes: ({ topology, clients }) => recipesOf(topology, clients.length),

  open(setting: Setting, { meter }) {
    return setting.topology === 'sentinel' ? SentinelStage.open(setting, meter) : AddressStage.open(setting, meter)
  },
}

function recipesOf(topology: string, clients: number): Recipe[] {
  if (topology === 'sentinel') {
    // Shorter than the second after which a Sentinel declares a master down.
    const three = { servers: 3, masters: 1, graceMs: SETTLE_MS, longestStallMs: 500 }
    return [...half(commonRecipes({ clients, servers: 3 })), ...serverRecipes(three), ...sentinelRecipes()]
  }
  const two = { servers: 2, masters: 1, graceMs: SETTLE_MS }
  return [
    ...half(commonRecipes({ clients, servers: 1 })),
    ...serverRecipes(two),
    ...restartRecipes(two),
    clockRecipe(1),
    ...addressRecipes(clients),
  ]
}

/** The faults of servers are the more interesting ones here. */
const half = (recipes: Recipe[]): Recipe[] => recipes.map((recipe) => ({ ...recipe, weight: recipe.weight / 2 }))

function addressRecipes(clients: number): Recipe[] {
  return [
    {
      name: 'failover',
      weight: 4,
      draw: (draw) => [
        {
          kind: 'failover',
          by: draw.weighted([
            ['replicaof', 2],
            ['command', 1],
          ] as const),
          gapMs: ms(draw, 0, draw.one([50, 1_500])),
          leave: draw.weighted<Leave>([
            ['all', 2],
            ['none', 1],
            ['subscriptions', 4],
            ['commands', 1],
            ['some', 3],
          ]),
          leaveMs: ms(draw, 0, draw.one([50, 2_500])),
          cut: draw.some(range(clients), draw.whole(1, clients)),
        },
      ],
    },
    { name: 'demoted-and-back', weight: 1, draw: (draw) => [{ kind: 'demoted-and-back', forMs: ms(draw, 20, 2_000) }] },
    {
      name: 'too-few-replicas',
      weight: 1,
      draw: (draw) => [
        draw.chance(0.7)
          ? { kind: 'too-few-replicas', by: 'count', forMs: ms(draw, 20, 2_000) }
          : { kind: 'too-few-replicas', by: 'stalled-replica', forMs: ms(draw, 2_500, 4_000) },
      ],
    },
    {
      name: 'restarted-at-wrong-time',
      weight: 1,
      draw: (draw) => [
        {
          kind: 'restarted-at-wrong-time',
          server: 0,
          data: 'kept',
          lagMs: 0,
          byMs: wrongTimeMs(draw),
          wrongMs: ms(draw, 0, 3_000),
          downMs: ms(draw, 0, 1_000),
        },
      ],
      aloneForMs: ([fault]) => Math.max(fault !== undefined && 'byMs' in fault ? fault.byMs : 0, 0) + SETTLE_MS,
    },
    {
      name: 'master-killed',
      weight: 1,
      draw: (draw) => [{ kind: 'master-killed', lagMs: ms(draw, 0, 1_500), downMs: ms(draw, 0, 1_500) }],
      aloneForMs: () => SETTLE_MS,
    },
  ]
}

function sentinelRecipes(): Recipe[] {
  return [
    {
      name: 'sentinel-failover',
      weight: 3,
      draw: (draw) => [
        {
          kind: 'sentinel-failover',
          by: draw.one(['command', 'stalled-master', 'killed-master'] as const),
          lagMs: ms(draw, 0, 1_000),
        },
      ],
      // Sentinel needs this long to notice, to elect a leader, to promote and to tell the other replicas.
      aloneForMs: () => 8_000,
    },
  ]
}
