import type { Draw } from '../draw.ts'
import { ms, type Recipe, range } from '../plan.ts'

export interface ServerRecipeOptions {
  servers: number
  /** The first servers, which are not replicas. */
  masters: number
  /** So long after a server has lost its data, no other may lose its own. */
  graceMs: number
  longestStallMs?: number
}

/** Faults of single Redis servers. */
export function serverRecipes({ servers, masters, graceMs, longestStallMs = 2_000 }: ServerRecipeOptions): Recipe[] {
  const all = range(servers)
  return [
    {
      name: 'server-stalled',
      weight: 1,
      draw: (draw) => [
        {
          kind: 'server-stalled',
          servers: draw.some(all, draw.whole(1, servers)),
          forMs: ms(draw, 100, longestStallMs),
        },
      ],
    },
    {
      name: 'scripts-flushed',
      weight: 1,
      draw: (draw) => [
        { kind: 'scripts-flushed', servers: draw.chance(0.5) ? all : draw.some(all, draw.whole(1, servers)) },
      ],
    },
    { name: 'listeners-killed', weight: 1, draw: () => [{ kind: 'listeners-killed', servers: all }] },
    { name: 'connections-killed', weight: 1, draw: () => [{ kind: 'connections-killed', servers: all }] },
    {
      name: 'out-of-memory',
      weight: 1,
      draw: (draw) => [
        { kind: 'out-of-memory', servers: draw.some(all, draw.whole(1, servers)), forMs: ms(draw, 20, 1_500) },
      ],
    },
    {
      name: 'data-flushed',
      weight: 1,
      draw: (draw) => [{ kind: 'data-flushed', server: draw.whole(0, masters - 1) }],
      aloneForMs: () => graceMs,
    },
    {
      name: 'memory-full',
      weight: 0.5,
      draw: (draw) => [{ kind: 'memory-full', servers: all, forMs: ms(draw, 3_000, 6_000) }],
      calmAfterMs: graceMs + CALM_MS,
    },
  ]
}

/** What a fault has left behind is over by then: connections are open again, and leases are back on every node. */
export const CALM_MS = 3_000

/** The offset of a clock that was never set. */
export const wrongTimeMs = (draw: Draw): number => draw.one([-3_600_000, 3_600_000])

/** A server is killed and starts again, with its data or without. */
export function restartRecipes({ servers, masters, graceMs }: ServerRecipeOptions): Recipe[] {
  return [
    {
      name: 'server-killed',
      weight: 1,
      draw: (draw) => [{ kind: 'server-killed', servers: [draw.whole(0, servers - 1)], downMs: ms(draw, 0, 1_500) }],
    },
    {
      name: 'restarted-empty',
      weight: 1,
      draw: (draw) => [{ kind: 'restarted-empty', server: draw.whole(0, masters - 1), downMs: ms(draw, 0, 1_500) }],
      aloneForMs: () => graceMs,
    },
  ]
}
