import { startRedis } from '../../test/harness/servers.ts'
import type { ClientPlan } from '../clients.ts'
import { Links } from '../links.ts'
import { commonRecipes, type Leave, type Recipe, range } from '../plan.ts'
import type { Scenario } from '../stage.ts'
import { FailoverStage } from './redis-failover-stage.ts'

/** A master and its replica behind one address. Each client reaches that address through its own proxy. */
export const redisFailover: Scenario = {
  drawSetting(draw, { clients, tasks, names, longestTtlSeconds }) {
    const callTimeoutSeconds = draw.one([1.5, 5])
    const waiterTtlSeconds = draw.one([4, 10])
    const hasClockAhead = draw.chance(0.3)
    const confirms = draw.chance(0.3)
    const plans = range(clients).map((client): ClientPlan => {
      const confirmed = confirms && draw.chance(0.4)
      const through = draw.weighted([
        ['ioredis', 4],
        ['redis', 3],
        ['url', confirmed ? 0 : 2],
      ] as const)
      return {
        clockAheadMs: hasClockAhead && client === 0 ? 10_000 : 0,
        settings: {
          language: 'node',
          driver: 'redis',
          through,
          names: range(names).map((name) => `order:${name}`),
          tasks,
          ttlSeconds: { least: 1, most: longestTtlSeconds ?? 8 },
          nodeTimeoutSeconds: 1,
          callTimeoutSeconds,
          waiterTtlSeconds,
          confirmed,
        },
      }
    })
    return { servers: 2, clients: plans, longestTtlMs: (longestTtlSeconds ?? 8) * 1_000 }
  },

  recipes(setting, { isLossy }) {
    const clients = range(setting.clients.length)
    const ms = Math.round
    const recipes: Recipe[] = [
      ...commonRecipes({ clients: clients.length, servers: 1 }).map((recipe) => ({
        ...recipe,
        weight: recipe.weight / 2,
      })),
      {
        name: 'failover',
        weight: 6,
        draw: (draw) => [
          {
            kind: 'failover',
            by: draw.weighted([
              ['replicaof', 2],
              ['command', 1],
            ] as const),
            gapMs: ms(draw.between(0, draw.one([50, 1_500]))),
            leave: draw.weighted<Leave>([
              ['all', 2],
              ['none', 1],
              ['subscriptions', 4],
              ['commands', 1],
              ['some', 3],
            ]),
            leaveMs: ms(draw.between(0, draw.one([50, 2_500]))),
            cut: draw.some(clients, draw.whole(1, clients.length)),
          },
        ],
      },
      {
        name: 'demoted-and-back',
        weight: 2,
        draw: (draw) => [{ kind: 'demoted-and-back', forMs: ms(draw.between(20, 2_000)) }],
      },
      {
        name: 'too-few-replicas',
        weight: 2,
        draw: (draw) => [
          draw.chance(0.7)
            ? { kind: 'too-few-replicas', by: 'count', forMs: ms(draw.between(20, 2_000)) }
            : { kind: 'too-few-replicas', by: 'stalled-replica', forMs: ms(draw.between(2_500, 4_000)) },
        ],
      },
      {
        name: 'out-of-memory',
        weight: 2,
        draw: (draw) => [{ kind: 'out-of-memory', forMs: ms(draw.between(20, 1_500)) }],
      },
      {
        name: 'connections-killed',
        weight: 2,
        draw: (draw) => [
          {
            kind: 'connections-killed',
            of: draw.one(['normal', 'pubsub'] as const),
            on: draw.one(['master', 'replica'] as const),
          },
        ],
      },
      { name: 'scripts-flushed', weight: 2, draw: () => [{ kind: 'scripts-flushed', servers: [0, 1] }] },
      {
        name: 'server-stalled',
        weight: 1,
        draw: (draw) => [{ kind: 'server-stalled', servers: [0], forMs: ms(draw.between(100, 2_000)) }],
      },
    ]
    const lossy: Recipe = {
      name: 'master-killed',
      weight: 2,
      draw: (draw) => [
        { kind: 'master-killed', lagMs: ms(draw.between(0, 1_500)), downMs: ms(draw.between(0, 1_500)) },
      ],
    }
    return isLossy ? [...recipes, lossy] : recipes
  },

  async open(setting, meter) {
    // By default, a master waits for five seconds before the first copy, in case another replica connects.
    const settings = { 'repl-diskless-sync-delay': '0' }
    const master = await startRedis({ settings })
    const replica = await startRedis({ settings: { ...settings, replicaof: `127.0.0.1 ${master.port}` } })
    const links = await Links.open(setting.clients.length, [master.port])
    const stage = new FailoverStage(setting, { master, replica, links, meter })
    await stage.untilInStep()
    return stage
  },
}
