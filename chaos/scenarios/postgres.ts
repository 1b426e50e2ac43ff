import type { Timeout } from '../faults.ts'
import { SETTLE_MS } from '../losses.ts'
import { clockRecipe, commonRecipes, ms, type Recipe } from '../plan.ts'
import type { Scenario } from '../stage.ts'
import { PostgresStage } from './postgres-stage.ts'
import { drawSetting } from './setting.ts'

/** Leases in a table. The server loses no lease, unless its rows are deleted or its clock is stepped. */
export const postgres: Scenario = {
  hasQueue: true,
  isMixable: true,
  get faultNames() {
    return tableRecipes(1, ['any']).map(({ name }) => name)
  },
  drawSetting: (draw, options) =>
    drawSetting(draw, options, {
      driver: 'postgres',
      servers: 1,
      node: [
        ['pg', 2],
        ['postgres', 2],
        ['url', 1],
      ],
      python: ['asyncpg', 'psycopg', 'url'],
    }),
  recipes: ({ clients, names }) => tableRecipes(clients.length, names),
  open: (setting, meter) => PostgresStage.open(setting, meter, { losesWithSession: false }),
}

/** Advisory locks, which end with their connection. */
export const advisory: Scenario = {
  hasQueue: false,
  isMixable: false,
  endsWithConnection: true,
  get faultNames() {
    return sessionRecipes(1).map(({ name }) => name)
  },
  drawSetting: (draw, options) =>
    drawSetting(draw, options, {
      driver: 'advisory',
      servers: 1,
      node: [
        ['pg', 2],
        ['postgres', 2],
        ['url', 1],
      ],
    }),
  recipes: ({ clients }) => sessionRecipes(clients.length),
  open: (setting, meter) => PostgresStage.open(setting, meter, { losesWithSession: true }),
}

const TIMEOUTS: readonly Timeout[] = [
  'statement_timeout',
  'lock_timeout',
  'idle_session_timeout',
  'idle_in_transaction_session_timeout',
]

function sessionRecipes(clients: number): Recipe[] {
  return [
    ...commonRecipes({ clients, servers: 1 }),
    clockRecipe(1),
    {
      name: 'server-stalled',
      weight: 1,
      draw: (draw) => [{ kind: 'server-stalled', servers: [0], forMs: ms(draw, 100, 2_500) }],
    },
    {
      name: 'server-killed',
      weight: 1,
      draw: (draw) => [{ kind: 'server-killed', servers: [0], downMs: ms(draw, 0, 1_500) }],
    },
    {
      name: 'immediate-shutdown',
      weight: 1,
      draw: (draw) => [{ kind: 'immediate-shutdown', downMs: ms(draw, 0, 1_500) }],
    },
    { name: 'connections-killed', weight: 1, draw: () => [{ kind: 'connections-killed', servers: [0] }] },
    {
      name: 'timeout-shortened',
      weight: 2,
      draw: (draw) => [
        {
          kind: 'timeout-shortened',
          setting: draw.one(TIMEOUTS),
          toMs: ms(draw, 20, 400),
          forMs: ms(draw, 500, 3_000),
        },
      ],
    },
  ]
}

function tableRecipes(clients: number, names: readonly string[]): Recipe[] {
  return [
    ...sessionRecipes(clients),
    { name: 'listeners-killed', weight: 1, draw: () => [{ kind: 'listeners-killed', servers: [0] }] },
    {
      name: 'table-truncated',
      weight: 1,
      draw: () => [{ kind: 'table-truncated' }],
      aloneForMs: () => SETTLE_MS,
    },
    {
      name: 'row-locked',
      weight: 2,
      draw: (draw) => [{ kind: 'row-locked', lockName: draw.one(names), forMs: ms(draw, 100, 3_000) }],
    },
    { name: 'table-locked', weight: 1, draw: (draw) => [{ kind: 'table-locked', forMs: ms(draw, 100, 2_000) }] },
  ]
}
