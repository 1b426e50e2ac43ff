import type { Draw } from './draw.ts'

/** The links between clients and servers that a fault hits. Redis behind one address has one link for each client. */
export interface Ways {
  clients: readonly number[]
  servers: readonly number[]
}

export type Direction = 'toServer' | 'toClient'

/** A fault, and when it begins: milliseconds after the start of its episode. */
export type Fault = { atMs: number } & FaultKind

type FaultKind =
  // The network.
  | { kind: 'late'; ways: Ways; direction: Direction; byMs: number; forMs: number }
  | { kind: 'held'; ways: Ways; direction: Direction; forMs: number }
  | { kind: 'silent'; ways: Ways; forMs: number }
  | { kind: 'cut'; ways: Ways }
  // Client processes.
  | { kind: 'process-paused'; client: number; forMs: number }
  | { kind: 'process-killed'; client: number; downMs: number }
  | { kind: 'loop-blocked'; client: number; forMs: number }
  // Servers.
  | { kind: 'server-stalled'; servers: readonly number[]; forMs: number }
  | { kind: 'scripts-flushed'; servers: readonly number[] }
  // Redlock: a node forgets, one at a time.
  | { kind: 'restarted-empty'; server: number; downMs: number }
  | { kind: 'data-flushed'; server: number }
  // Redis behind one address.
  | {
      kind: 'failover'
      by: 'replicaof' | 'command'
      gapMs: number
      leave: Leave
      leaveMs: number
      cut: readonly number[]
    }
  | { kind: 'demoted-and-back'; forMs: number }
  | { kind: 'too-few-replicas'; by: 'count' | 'stalled-replica'; forMs: number }
  | { kind: 'out-of-memory'; forMs: number }
  | { kind: 'connections-killed'; of: 'normal' | 'pubsub'; on: 'master' | 'replica' }
  | { kind: 'master-killed'; lagMs: number; downMs: number }

/** The connections that stay on the old master after a failover. If only some stay, those of `cut` are cut. */
export type Leave = 'all' | 'none' | 'subscriptions' | 'commands' | 'some'

export type KindName = FaultKind['kind']

/**
 * A way to draw a fault, or several that belong together (`afterMs` after the first one). `weight` is how often it is
 * drawn, compared with the others.
 */
export interface Recipe {
  name: string
  weight: number
  draw(draw: Draw): (FaultKind & { afterMs?: number })[]
}

/** Draws the same faults for the same seed. Faults overlap: one can begin before the last one has ended. */
export function drawFaults(draw: Draw, recipes: readonly Recipe[], { forMs, everyMs }: Pace): Fault[] {
  const weighted = recipes.map((recipe) => [recipe, recipe.weight] as const)
  const faults: Fault[] = []
  for (let atMs = draw.between(0, everyMs); atMs < forMs; atMs += everyMs * draw.between(0.1, 1.9)) {
    for (const { afterMs = 0, ...fault } of draw.weighted(weighted).draw(draw)) {
      faults.push({ atMs: Math.round(atMs + afterMs), ...fault })
    }
  }
  return faults.sort((a, b) => a.atMs - b.atMs)
}

export interface Pace {
  forMs: number
  /** The average time between the begins of two faults. */
  everyMs: number
}

/** The faults of every scenario: those of the network and of the client processes. */
export function commonRecipes({ clients, servers }: { clients: number; servers: number }): Recipe[] {
  const all = { clients: range(clients), servers: range(servers) }
  /** All clients as often as some: a fault for all, and a fault that gives a rival the time to overtake. */
  const someOf = (draw: Draw, list: readonly number[]): number[] =>
    draw.chance(0.5) ? [...list] : draw.some(list, draw.whole(1, list.length))
  const ways = (draw: Draw): Ways => ({ clients: someOf(draw, all.clients), servers: someOf(draw, all.servers) })
  const direction = (draw: Draw): Direction => (draw.chance(0.75) ? 'toClient' : 'toServer')
  const ms = (draw: Draw, least: number, most: number): number => Math.round(draw.between(least, most))
  return [
    {
      name: 'late',
      weight: 4,
      draw: (draw) => [
        {
          kind: 'late',
          ways: ways(draw),
          direction: direction(draw),
          byMs: ms(draw, 200, draw.one([600, 1_600, 3_000])),
          forMs: ms(draw, 500, 6_000),
        },
      ],
    },
    {
      name: 'held',
      weight: 3,
      draw: (draw) => [{ kind: 'held', ways: ways(draw), direction: direction(draw), forMs: ms(draw, 200, 3_000) }],
    },
    { name: 'silent', weight: 1, draw: (draw) => [{ kind: 'silent', ways: ways(draw), forMs: ms(draw, 200, 4_000) }] },
    { name: 'cut', weight: 2, draw: (draw) => [{ kind: 'cut', ways: ways(draw) }] },
    {
      name: 'process-paused',
      weight: 2,
      draw: (draw) => [
        { kind: 'process-paused', client: draw.one(all.clients), forMs: ms(draw, 100, draw.one([1_500, 9_000])) },
      ],
    },
    {
      name: 'process-killed',
      weight: 1,
      draw: (draw) => [{ kind: 'process-killed', client: draw.one(all.clients), downMs: ms(draw, 0, 2_000) }],
    },
    {
      name: 'loop-blocked',
      weight: 1,
      draw: (draw) => [{ kind: 'loop-blocked', client: draw.one(all.clients), forMs: ms(draw, 100, 4_000) }],
    },
  ]
}

/** Only the recipes with these names. An unknown name is an error. */
export function chosen(recipes: readonly Recipe[], names: readonly string[] | undefined): readonly Recipe[] {
  if (names === undefined) return recipes
  const unknown = names.find((name) => !recipes.some((recipe) => recipe.name === name))
  if (unknown !== undefined) {
    throw new RangeError(`unknown fault ${unknown}: choose from ${recipes.map(({ name }) => name).join(', ')}`)
  }
  return recipes.filter(({ name }) => names.includes(name))
}

export const range = (count: number): number[] => Array.from({ length: count }, (_, at) => at)
