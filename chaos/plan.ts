import type { Draw } from './draw.ts'
import type { Direction, Fault, FaultKind, Ways } from './faults.ts'
import { SETTLE_MS } from './losses.ts'

/** A way to draw a fault, or several that belong together (`afterMs` after the first one). */
export interface Recipe {
  name: string
  /** How often it is drawn, compared with the others. */
  weight: number
  draw(draw: Draw): (FaultKind & { afterMs?: number })[]
  /**
   * For this long after its end, the store is still in the state that the fault has made. No other recipe with this
   * property begins before: fencing tokens rise over any one of these faults at a time, not over two at once.
   */
  aloneForMs?(faults: readonly FaultKind[]): number
  /**
   * It shows what the store keeps under this fault alone: it begins so long after the end of all others, and no other
   * begins before its end.
   */
  calmAfterMs?: number
}

/** Draws the same faults for the same seed. Faults overlap: one can begin before the last one has ended. */
export function drawFaults(draw: Draw, recipes: readonly Recipe[], { forMs, everyMs }: Pace): Fault[] {
  const faults: Fault[] = []
  let [freeAtMs, busyUntilMs, calmUntilMs] = [0, 0, 0]
  for (let atMs = draw.between(0, everyMs); atMs < forMs; atMs += everyMs * draw.between(0.1, 1.9)) {
    const possible = recipes.filter(({ aloneForMs }) => aloneForMs === undefined || atMs >= freeAtMs)
    if (possible.length === 0 || atMs < calmUntilMs) continue
    const recipe = draw.weighted(possible.map((each) => [each, each.weight] as const))
    const drawn = recipe.draw(draw)
    const fromMs = recipe.calmAfterMs === undefined ? atMs : Math.max(atMs, freeAtMs, busyUntilMs + recipe.calmAfterMs)
    if (fromMs >= forMs) continue
    for (const { afterMs = 0, ...fault } of drawn) faults.push({ atMs: Math.round(fromMs + afterMs), ...fault })
    const endMs = fromMs + Math.max(...drawn.map((fault) => (fault.afterMs ?? 0) + durationMs(fault)))
    busyUntilMs = Math.max(busyUntilMs, endMs)
    if (recipe.calmAfterMs !== undefined) calmUntilMs = endMs
    if (recipe.aloneForMs !== undefined) freeAtMs = endMs + recipe.aloneForMs(drawn)
  }
  return faults.sort((a, b) => a.atMs - b.atMs)
}

export interface Pace {
  forMs: number
  /** The average time between the begins of two faults. */
  everyMs: number
}

/** How long a fault is planned to last. Starting a server again takes longer. */
const durationMs = (fault: FaultKind): number =>
  ('forMs' in fault ? fault.forMs : 0) +
  ('downMs' in fault ? fault.downMs : 0) +
  ('lagMs' in fault ? fault.lagMs : 0) +
  ('wrongMs' in fault ? fault.wrongMs : 0)

/** The faults of every store that is reached over a network, and of the client processes. */
export function commonRecipes({ clients, servers }: { clients: number; servers: number }): Recipe[] {
  const all = { clients: range(clients), servers: range(servers) }
  /** All clients as often as some: a fault for all, and a fault that gives a rival the time to overtake. */
  const someOf = (draw: Draw, list: readonly number[]): number[] =>
    draw.chance(0.5) ? [...list] : draw.some(list, draw.whole(1, list.length))
  const ways = (draw: Draw): Ways => ({ clients: someOf(draw, all.clients), servers: someOf(draw, all.servers) })
  const direction = (draw: Draw): Direction => (draw.chance(0.75) ? 'toClient' : 'toServer')
  const late = (kind: 'late-replies' | 'late-requests', weight: number): Recipe => ({
    name: kind,
    weight,
    draw: (draw) => [
      { kind, ways: ways(draw), byMs: ms(draw, 200, draw.one([600, 1_600, 3_000])), forMs: ms(draw, 500, 6_000) },
    ],
  })
  return [
    late('late-replies', 3),
    late('late-requests', 1),
    {
      name: 'held',
      weight: 3,
      draw: (draw) => [{ kind: 'held', ways: ways(draw), direction: direction(draw), forMs: ms(draw, 200, 3_000) }],
    },
    { name: 'silent', weight: 1, draw: (draw) => [{ kind: 'silent', ways: ways(draw), forMs: ms(draw, 200, 4_000) }] },
    { name: 'cut', weight: 2, draw: (draw) => [{ kind: 'cut', ways: ways(draw) }] },
    ...processRecipes(clients),
    {
      name: 'client-clock-stepped',
      weight: 1,
      draw: (draw) => [
        {
          kind: 'client-clock-stepped',
          clients: draw.some(all.clients, draw.whole(1, 2)),
          byMs: stepMs(draw),
          forMs: ms(draw, 200, 5_000),
        },
      ],
    },
  ]
}

/** The faults of the client processes. */
export function processRecipes(clients: number): Recipe[] {
  const any = (draw: Draw): number => draw.whole(0, clients - 1)
  return [
    {
      name: 'process-paused',
      weight: 2,
      draw: (draw) => [
        { kind: 'process-paused', client: any(draw), forMs: ms(draw, 100, draw.one([1_500, 4_500, 9_000])) },
      ],
    },
    {
      name: 'process-killed',
      weight: 1,
      draw: (draw) => [{ kind: 'process-killed', client: any(draw), downMs: ms(draw, 0, 2_000) }],
    },
    {
      name: 'loop-blocked',
      weight: 1,
      draw: (draw) => [{ kind: 'loop-blocked', client: any(draw), forMs: ms(draw, 100, 4_000) }],
    },
  ]
}

/** The clock of a store jumps, and jumps back. Tokens are ahead of the clock for as long as the step was. */
export const clockRecipe = (servers: number): Recipe => ({
  name: 'server-clock-stepped',
  weight: 1,
  draw: (draw) => [
    {
      kind: 'server-clock-stepped',
      servers: [draw.whole(0, servers - 1)],
      byMs: stepMs(draw),
      forMs: ms(draw, 300, 3_000),
    },
  ],
  aloneForMs: ([fault]) => (fault !== undefined && 'byMs' in fault ? Math.abs(fault.byMs) : 0) + SETTLE_MS,
})

/** Forwards as often as back, by less or more than the longest lease. */
export const stepMs = (draw: Draw): number => (draw.chance(0.5) ? 1 : -1) * ms(draw, 500, draw.one([1_500, 5_000]))

export const ms = (draw: Draw, least: number, most: number): number => Math.round(draw.between(least, most))

/** Only the recipes with these names. A name that is not one of `known` is an error. */
export function chosen(
  recipes: readonly Recipe[],
  names: readonly string[] | undefined,
  known: readonly string[],
): readonly Recipe[] {
  if (names === undefined) return recipes
  const unknown = names.find((name) => !known.includes(name))
  if (unknown !== undefined) throw new RangeError(`unknown fault ${unknown}: choose from ${known.join(', ')}`)
  return recipes.filter(({ name }) => names.includes(name))
}

export const range = (count: number): number[] => Array.from({ length: count }, (_, at) => at)
