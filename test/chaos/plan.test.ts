import { describe, expect, test } from 'vitest'
import { Draw } from '../../chaos/draw.ts'
import { planEpisode } from '../../chaos/episode.ts'
import { redisFailover } from '../../chaos/scenarios/redis-failover.ts'
import { redlock } from '../../chaos/scenarios/redlock.ts'

const options = {
  clients: 5,
  tasks: 4,
  names: 3,
  longestTtlSeconds: undefined,
  seconds: 600,
  faultEveryMs: 1_000,
  faults: undefined,
  isLossy: false,
}

describe.each([
  ['redlock', redlock],
  ['redis-failover', redisFailover],
])('%s', (_, scenario) => {
  test('the same seed draws the same setting and faults in the same order, and another seed draws others', () => {
    const plan = planEpisode({ ...options, scenario, seed: '7/1' })
    expect(planEpisode({ ...options, scenario, seed: '7/1' })).toEqual(plan)
    expect(planEpisode({ ...options, scenario, seed: '7/2' }).faults).not.toEqual(plan.faults)
  })

  test('every kind of fault is drawn, sorted by time', () => {
    const { faults, setting } = planEpisode({ ...options, scenario, seed: '7/1' })
    const drawn = new Set(faults.map(({ kind }) => kind))
    const kinds = scenario.recipes(setting, { isLossy: false }).flatMap((recipe) => recipe.draw(new Draw('any')))
    for (const { kind } of kinds) expect(drawn).toContain(kind)
    expect(faults.map(({ atMs }) => atMs)).toEqual(faults.map(({ atMs }) => atMs).sort((a, b) => a - b))
  })

  test('only the requested kinds are drawn, and an unknown kind is rejected', () => {
    const plan = planEpisode({ ...options, scenario, seed: '7/1', faults: ['cut', 'late'] })
    expect(new Set(plan.faults.map(({ kind }) => kind))).toEqual(new Set(['cut', 'late']))
    expect(() => planEpisode({ ...options, scenario, seed: '7/1', faults: ['flood'] })).toThrow('unknown fault flood')
  })
})

test('a master is killed only with --lossy', () => {
  const kinds = (isLossy: boolean) =>
    planEpisode({ ...options, scenario: redisFailover, seed: '7/1', isLossy }).faults.map(({ kind }) => kind)
  expect(kinds(true)).toContain('master-killed')
  expect(kinds(false)).not.toContain('master-killed')
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
