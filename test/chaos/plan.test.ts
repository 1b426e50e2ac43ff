import { describe, expect, test } from 'vitest'
import { Draw } from '../../chaos/draw.ts'
import { planEpisode } from '../../chaos/episode.ts'
import { drawFaults, type Recipe } from '../../chaos/plan.ts'
import { DRIVERS } from '../../chaos/scenarios/drivers.ts'

const options = {
  episode: 1,
  clients: 5,
  tasks: 4,
  names: 3,
  longestTtlSeconds: 2,
  isMixed: false,
  seconds: 900,
  faultEveryMs: 1_000,
  faults: undefined,
}

describe.each(Object.entries(DRIVERS))('%s', (name, scenario) => {
  const plan = (changes: { seed?: string; episode?: number; faults?: string[] } = {}) =>
    planEpisode({ ...options, scenario, seed: '7/1', ...changes })

  test('the same seed draws the same setting and faults in the same order, and another seed draws others', () => {
    expect(plan()).toEqual(plan())
    expect(plan({ seed: '7/2' }).faults).not.toEqual(plan().faults)
  })

  test('every kind of fault is drawn, sorted by time', () => {
    const episodes = [1, 2].map((episode) => plan({ episode }))
    const drawn = new Set(episodes.flatMap(({ faults }) => faults.map(({ kind }) => kind)))
    for (const { setting, faults } of episodes) {
      const kinds = scenario.recipes(setting).flatMap((recipe) => recipe.draw(new Draw('any')))
      for (const { kind } of kinds) expect(drawn).toContain(kind)
      const times = faults.map(({ atMs }) => atMs)
      expect(times).toEqual([...times].sort((a, b) => a - b))
    }
  })

  test('only the requested kinds are drawn, and an unknown kind is rejected', () => {
    const chosen = name === 'sqlite' ? ['process-killed', 'checkpointed'] : ['process-killed', 'process-paused']
    expect(new Set(plan({ faults: chosen }).faults.map(({ kind }) => kind))).toEqual(new Set(chosen))
    expect(() => plan({ faults: ['flood'] })).toThrow('unknown fault flood')
  })
})

test('there are more than thirty kinds of faults over all drivers', () => {
  const kinds = Object.values(DRIVERS).flatMap((scenario) =>
    [1, 2].flatMap((episode) => planEpisode({ ...options, scenario, seed: '7/1', episode }).faults),
  )
  expect(new Set(kinds.map(({ kind }) => kind)).size).toBeGreaterThan(30)
})

test('redis: the topologies take turns, and a fault that only one of them has selects it', () => {
  const { redis } = DRIVERS as { redis: (typeof DRIVERS)[string] }
  const topologyOf = (episode: number, faults?: string[]) =>
    planEpisode({ ...options, scenario: redis, seed: '7/1', episode, faults }).setting.topology
  expect([1, 2, 3].map((episode) => topologyOf(episode))).toEqual(['address', 'sentinel', 'address'])
  expect([1, 2].map((episode) => topologyOf(episode, ['sentinel-failover']))).toEqual(['sentinel', 'sentinel'])
})

test('of the faults that run alone, none begins before the last one has ended and its time alone has passed', () => {
  const stepped = { kind: 'server-clock-stepped', servers: [0], byMs: 5_000, forMs: 300 } as const
  const recipes: Recipe[] = [
    { name: 'clock', weight: 1, draw: () => [stepped], aloneForMs: () => 6_000 },
    { name: 'truncated', weight: 1, draw: () => [{ kind: 'table-truncated' }], aloneForMs: () => 1_000 },
    { name: 'checkpointed', weight: 1, draw: () => [{ kind: 'checkpointed' }] },
  ]
  const faults = drawFaults(new Draw('alone'), recipes, { forMs: 600_000, everyMs: 500 })
  const alone = faults.filter(({ kind }) => kind !== 'checkpointed')
  expect(alone.length).toBeGreaterThan(50)
  for (const [at, { atMs }] of alone.entries()) {
    const before = alone[at - 1]
    // Times are rounded to milliseconds.
    const takes = before?.kind === 'server-clock-stepped' ? 6_299 : 999
    if (before !== undefined) expect(atMs - before.atMs).toBeGreaterThanOrEqual(takes)
  }
})

test('a calm fault begins when all others have ended for its time, and none begins before its end', () => {
  const recipes: Recipe[] = [
    {
      name: 'memory',
      weight: 1,
      draw: () => [{ kind: 'memory-full', servers: [0], forMs: 4_000 }],
      calmAfterMs: 3_000,
    },
    { name: 'stalled', weight: 9, draw: () => [{ kind: 'server-stalled', servers: [0], forMs: 2_000 }] },
  ]
  const faults = drawFaults(new Draw('calm'), recipes, { forMs: 600_000, everyMs: 500 })
  const calm = faults.filter(({ kind }) => kind === 'memory-full')
  expect(calm.length).toBeGreaterThan(10)
  for (const { atMs } of calm) {
    const others = faults.filter(({ kind }) => kind === 'server-stalled')
    // Times are rounded to milliseconds.
    expect(others.filter((other) => other.atMs > atMs - 4_999 && other.atMs < atMs + 3_999)).toEqual([])
  }
})

describe('random numbers', () => {
  test('are uniform over their range', () => {
    const draw = new Draw('spread')
    const tenths = new Array<number>(10).fill(0)
    for (let at = 0; at < 10_000; at += 1) {
      const tenth = Math.floor(draw.fraction() * 10)
      tenths[tenth] = (tenths[tenth] ?? 0) + 1
    }
    for (const count of tenths) expect(Math.abs(count - 1_000)).toBeLessThan(200)
  })

  test('follow their weights, and never draw an item without weight', () => {
    const draw = new Draw('weights')
    const drawn = { often: 0, rarely: 0, never: 0 }
    for (let at = 0; at < 10_000; at += 1) {
      const one = draw.weighted([
        ['often', 9],
        ['never', 0],
        ['rarely', 1],
      ] as const)
      drawn[one] += 1
    }
    expect(drawn.never).toBe(0)
    expect(Math.abs(drawn.rarely - 1_000)).toBeLessThan(200)
  })

  test('some() draws different items, in the order of the list', () => {
    const draw = new Draw('some')
    for (let at = 0; at < 100; at += 1) {
      const some = draw.some([1, 2, 3, 4, 5], 3)
      expect(some).toHaveLength(3)
      expect([...new Set(some)].sort()).toEqual(some)
    }
  })
})
