import type { ClientPlan } from '../clients.ts'
import type { Copy, Timeout } from '../faults.ts'
import { SETTLE_MS } from '../losses.ts'
import { clockRecipe, commonRecipes, ms, type Recipe, range } from '../plan.ts'
import type { Scenario } from '../stage.ts'
import { PostgresStage } from './postgres-stage.ts'
import { drawSetting } from './setting.ts'

/** How clients in Node connect, and how often. */
const NODE = [
  ['pg', 2],
  ['postgres', 2],
  ['url', 1],
  ['pg-client', 2],
] as const

/** Leases in a table. The server loses no lease, unless its rows are deleted or its clock is stepped. */
export const postgres: Scenario = {
  hasQueue: true,
  isMixable: true,
  get faultNames() {
    return tableRecipes(ANY, ['any']).map(({ name }) => name)
  },
  drawSetting: (draw, options) =>
    drawSetting(draw, options, {
      driver: 'postgres',
      servers: 1,
      node: NODE,
      keeps: ['lock', 'read', 'permits'],
      python: ['asyncpg', 'psycopg', 'url'],
    }),
  recipes: ({ clients, names }) => tableRecipes(clients, names),
  open: (setting, parts) => PostgresStage.open(setting, parts, { losesWithSession: false }),
}

/** Advisory locks, which end with their connection. */
export const advisory: Scenario = {
  hasQueue: false,
  isMixable: false,
  endsWithConnection: true,
  get faultNames() {
    return sessionRecipes(ANY).map(({ name }) => name)
  },
  drawSetting: (draw, options) =>
    drawSetting(draw, options, {
      driver: 'advisory',
      servers: 1,
      node: NODE,
      keeps: ['lock', 'read'],
    }),
  recipes: ({ clients }) => sessionRecipes(clients),
  open: (setting, parts) => PostgresStage.open(setting, parts, { losesWithSession: true }),
}

/** After the end of another fault, for the leases that are kept to be taken again. */
const CALM_MS = 4_000

const TIMEOUTS: readonly Timeout[] = [
  'statement_timeout',
  'lock_timeout',
  'idle_session_timeout',
  'idle_in_transaction_session_timeout',
]

type Plans = readonly { settings: Pick<ClientPlan['settings'], 'through' | 'kept'> }[]

/** Clients with which every fault is possible. */
const ANY: Plans = [{ settings: { through: 'pg-client', kept: [{ name: 'any', kind: 'lock' }] } }]

function sessionRecipes(clients: Plans, copies: readonly Copy[] = ['template']): Recipe[] {
  const single = range(clients.length).filter((at) => clients[at]?.settings.through === 'pg-client')
  const released: Recipe = {
    name: 'locks-released',
    weight: 3,
    draw: (draw) => [{ kind: 'locks-released', client: draw.one(single) }],
  }
  return [
    ...commonRecipes({ clients: clients.length, servers: 1 }),
    ...(single.length > 0 ? [released] : []),
    {
      name: 'database-put-back',
      weight: 1,
      draw: (draw) => [
        { kind: 'database-put-back', from: draw.one(copies), lagMs: ms(draw, 0, draw.one([300, 3_000])) },
      ],
      // Copying takes time, too.
      aloneForMs: () => 2 * SETTLE_MS,
    },
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

function tableRecipes(clients: Plans, names: readonly string[]): Recipe[] {
  const kept = clients.flatMap(({ settings }) => settings.kept.filter(({ kind }) => kind === 'lock'))
  return [
    ...sessionRecipes(clients, ['template', 'data']),
    {
      name: 'old-statistics',
      weight: 0.7,
      draw: (draw) => [
        {
          kind: 'old-statistics',
          of: draw.one(['empty', 'expired']),
          waiters: draw.whole(2_000, 5_000),
          lockName: draw.one(kept).name,
          forMs: ms(draw, 3_000, 6_000),
        },
      ],
      aloneForMs: () => 0,
      calmAfterMs: CALM_MS,
    },
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
