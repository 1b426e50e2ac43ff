import { describe, expect, test } from 'vitest'
import { chartOf } from '../../chaos/chart/chart.ts'
import { lanesOf } from '../../chaos/chart/lanes.ts'
import { type ChartSource, pickScene } from '../../chaos/chart/scene.ts'
import { check } from '../../chaos/check.ts'
import type { DoneFault } from '../../chaos/episode.ts'
import type { LeaseHistory } from '../../chaos/history.ts'

const lease = (client: number, token: number, knownAt: number, heldUntil: number, name = 'order'): LeaseHistory => ({
  id: `${client}-1.${token}`,
  name,
  token,
  ttlMs: 2_000,
  askedAt: knownAt - 5,
  knownAt,
  heldUntil,
  end: 'released',
})

const cut = (fromMs: number): DoneFault => ({
  fault: { kind: 'cut', atMs: 0, ways: { clients: [1], servers: [0] } },
  fromMs,
  toMs: fromMs,
})

function source(leases: LeaseHistory[], done: DoneFault[] = []): ChartSource {
  return { leases, done, verdict: check(leases) }
}

/** A minute in which two clients take turns. */
const turns = Array.from({ length: 60 }, (_, at) => lease(at % 2, 1_000 + at, at * 1_000, at * 1_000 + 800))
const options = { title: 'redis, seed 7', clients: 2 }
const svgOf = (from: ChartSource): string => chartOf(from, options)?.svg ?? ''

describe('a chart', () => {
  test('has a bar for each lease in the row of all clients and in that of its client, with its token', () => {
    const svg = svgOf(source(turns.slice(0, 10)))
    expect(
      svg.match(/<title>0-1\.1000 held it with token 1000 from 0\.005 s to 0\.805 s, and released it/g),
    ).toHaveLength(2)
    expect(svg.match(/<rect class="c[01]"[^>]*><title>/g)).toHaveLength(20)
  })

  test('names each fault, and when it was', () => {
    const svg = svgOf(source(turns, [cut(3_000)]))
    expect(svg).toContain('>cut</text>')
    expect(svg).toContain('<title>cut from second 3.0 to 3.0 ')
  })

  test('is red where two clients held the lock, and only there', () => {
    expect(svgOf(source(turns))).not.toContain('class="violation"')
    const svg = svgOf(source([...turns, lease(1, 1_060, 58_100, 58_700)]))
    expect(svg).toContain('two holders: 0-1.1058 with token 1058, 1-1.1060 with token 1060')
    expect(svg).toContain('>violation</text>')
  })

  test('is red where a token fell', () => {
    expect(svgOf(source([...turns, lease(1, 900, 70_000, 70_500)]))).toContain('class="c1 wrong"')
  })

  test('is the same for the same history', () => {
    const done = [cut(3_000), cut(3_100)]
    expect(svgOf(source(turns, done))).toBe(svgOf(source([...turns], [...done])))
  })

  test('has no script and nothing from elsewhere, and escapes names', () => {
    const svg = svgOf(source(turns.map((each) => ({ ...each, name: '<script>&' }))))
    expect(svg).not.toMatch(/<script|href|@import|url\(/)
    expect(svg).toContain('&lt;script&gt;&amp;')
  })

  test('is not drawn if there was no lease', () => {
    expect(chartOf(source([], [cut(3_000)]), options)).toBeUndefined()
  })
})

describe('the scene of a chart', () => {
  test('is the time with the most faults', () => {
    const scene = pickScene(source(turns, [cut(40_000), cut(41_000), cut(42_000)]))
    expect(scene).toMatchObject({ name: 'order', faults: { length: 3 } })
    expect(scene?.fromMs).toBeLessThan(40_000)
    expect(scene?.toMs).toBeGreaterThan(42_000)
  })

  test('is the time of a violation, however quiet it is', () => {
    const quiet = [lease(0, 5_000, 100_000, 101_000), lease(1, 5_001, 100_500, 100_600)]
    const scene = pickScene(source([...turns, ...quiet], [cut(1_000), cut(2_000), cut(3_000)]))
    expect(scene?.leases.map(({ token }) => token)).toEqual([5_000, 5_001])
  })

  test('is one of the lock name that changes hands most', () => {
    const other = [lease(0, 1, 0, 60_000, 'calm')]
    expect(pickScene(source([...other, ...turns]))?.name).toBe('order')
  })
})

test('faults that overlap are in lanes of their own', () => {
  const spans = [
    { begin: 0, end: 5 },
    { begin: 5, end: 9 },
    { begin: 4, end: 6 },
  ]
  expect(lanesOf(spans, (span) => span)).toEqual([[spans[0], spans[1]], [spans[2]]])
})
