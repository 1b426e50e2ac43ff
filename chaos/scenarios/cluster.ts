import { SETTLE_MS } from '../losses.ts'
import { clockRecipe, commonRecipes, ms, type Recipe, range } from '../plan.ts'
import type { Scenario } from '../stage.ts'
import { ClusterStage, MASTERS } from './cluster-stage.ts'
import { CALM_MS, restartRecipes, serverRecipes } from './redis-recipes.ts'
import { drawSetting } from './setting.ts'

/** A Redis Cluster of three masters with a replica each. */
export const cluster: Scenario = {
  hasQueue: true,
  isMixable: false,
  get faultNames() {
    return recipesOf(1, ['any']).map(({ name }) => name)
  },
  drawSetting: (draw, options) =>
    drawSetting(draw, options, {
      driver: 'cluster',
      servers: 2 * MASTERS,
      keeps: ['lock', 'read', 'permits'],
      node: [
        ['ioredis', 4],
        ['redis', 3],
      ],
    }),
  recipes: ({ clients, names }) => recipesOf(clients.length, names),
  open: (setting, { meter }) => ClusterStage.open(setting, meter),
}

function recipesOf(clients: number, names: readonly string[]): Recipe[] {
  const all = { servers: MASTERS, masters: MASTERS, graceMs: SETTLE_MS }
  return [
    ...commonRecipes({ clients, servers: 2 * MASTERS }),
    ...serverRecipes(all),
    ...restartRecipes(all),
    clockRecipe(1),
    {
      name: 'slot-moved',
      weight: 4,
      draw: (draw) => [
        {
          kind: 'slot-moved',
          lockName: draw.one(names),
          toNext: draw.whole(1, MASTERS - 1),
          forMs: ms(draw, 50, 3_000),
        },
      ],
    },
    {
      name: 'server-hung',
      weight: 0.5,
      draw: (draw) => [{ kind: 'server-hung', server: draw.one(range(MASTERS)), forMs: ms(draw, 4_000, 8_000) }],
      calmAfterMs: CALM_MS,
    },
    {
      name: 'cluster-failover',
      weight: 3,
      draw: (draw) => [
        {
          kind: 'cluster-failover',
          shard: draw.one(range(MASTERS)),
          by: draw.weighted([
            ['command', 2],
            ['killed-master', 1],
          ] as const),
          downMs: ms(draw, 0, 1_500),
        },
      ],
      aloneForMs: () => SETTLE_MS,
    },
  ]
}
