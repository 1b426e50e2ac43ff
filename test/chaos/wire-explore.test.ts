import { describe, expect, test } from 'vitest'
import { type Case, readCase } from '../../chaos/wire/case.ts'
import { casesOf } from '../../chaos/wire/cases.ts'
import { tooLittle } from '../../chaos/wire/enough.ts'
import { type Row, tried } from '../../chaos/wire/explore.ts'
import { figuresOf, tableOf } from '../../chaos/wire/report.ts'
import type { Outcome } from '../../chaos/wire/run-scene.ts'
import { SCENES } from '../../chaos/wire/scenes/index.ts'

const hit = readCase('redis/release/a0.0q3:late', SCENES)

describe('a case', () => {
  const outcome = (more: Partial<Outcome>): Outcome => ({
    ...{ violations: [], late: [], seen: [], injected: ['a0.0q3'], grants: 2 },
    ...more,
  })
  const playing = (outcomes: Outcome[]) => {
    const left = [...outcomes]
    return { once: async (_: Case) => left.shift() ?? outcome({}), left }
  }

  test('is played once if its message came', async () => {
    const { once, left } = playing([outcome({}), outcome({ grants: 7 })])
    expect((await tried(hit, once)).grants).toBe(2)
    expect(left).toHaveLength(1)
  })

  test('is played again if its message did not come', async () => {
    const { once } = playing([outcome({ injected: [] }), outcome({ grants: 7 })])
    expect((await tried(hit, once)).grants).toBe(7)
  })

  test.each([{ violations: ['two holders'] }, { late: ['it did not settle'] }])(
    'keeps what broke in a try whose message did not come: %j',
    async (broken) => {
      const { once } = playing([outcome({ injected: [], ...broken }), outcome({})])
      expect(await tried(hit, once)).toMatchObject(broken)
    },
  )
})

test('a pair of faults hits two messages', () => {
  const faults = ['lost', 'late', 'overtaken', 'cut-before']
  const messages = ['a0.0q1', 'a0.0r1'].map((place) => ({ place, label: '', faults }))
  const settings = { dist: '', scenes: SCENES, stores: [], jobs: 1, seed: '1', pairs: 50 } as const
  const healthy = { ...hit, faults: new Map<string, string>() }
  const pairs = casesOf(healthy, messages, settings).filter(({ kind }) => kind === 'pairs')
  expect(pairs).toHaveLength(50)
  expect(new Set(pairs.map((each) => each.faults.size))).toEqual(new Set([2]))
  expect(casesOf(healthy, messages.slice(0, 1), settings).every(({ kind }) => kind === 'faults')).toBe(true)
})

describe('an exploration', () => {
  const row: Row = {
    ...{ scene: 'hand-off', store: 'redis', messages: 20, faults: 100, majorities: 0, pairs: 20, missed: 12 },
    ...{ grants: 400, healthyGrants: 4, leastGrants: 4 },
  }

  test('proves something if its scenes are played, and its faults hit their messages', () => {
    expect(tooLittle([row])).toEqual([])
  })

  test('proves nothing if a scene has too few grants without faults, or too many cases are missed', () => {
    const figures = figuresOf(
      { rows: [{ ...row, healthyGrants: 1, missed: 13 }], violations: [], unrepeated: 0, seconds: 1, cpuSeconds: 1 },
      '1',
    )
    expect(figures.problems).toEqual([
      'redis/hand-off has 1 grants without a fault, but at least 4 are needed',
      'too many cases were missed: 13 of 120',
    ])
    expect(tableOf(figures)).toContain('problem: too many cases were missed')
  })
})
