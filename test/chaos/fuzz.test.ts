import { join } from 'node:path'
import { beforeAll, describe, expect, inject, test } from 'vitest'
import { tooLittle } from '../../chaos/fuzz/enough.ts'
import { fuzz } from '../../chaos/fuzz/fuzz.ts'
import { main } from '../../chaos/fuzz/main.ts'
import type { Ground } from '../../chaos/fuzz/target.ts'
import { TARGETS } from '../../chaos/fuzz/targets.ts'
import { loadLibrary } from '../../chaos/wire/library.ts'

/** A sample of `npm run fuzz`, on the servers that all tests share. */
const SEED = process.env['HOLDFAST_FUZZ_SEED'] ?? '1'
const root = join(import.meta.dirname, '../../')
let ground: Ground

beforeAll(async () => {
  const { redis = [], postgres = '' } = inject('servers')
  const portOf = (url: string): number => Number(new URL(url).port)
  const servers = { redis: redis.map(portOf), postgres: portOf(postgres) }
  ground = { library: await loadLibrary(`${root}dist`), dist: `${root}dist`, root, servers }
})

/** At most these cases and seconds: a busy machine runs fewer cases. */
const SAMPLES = { replies: [40, 6], messages: [25, 5], rows: [40, 5], input: [150, 5] } as const

describe.concurrent('odd input causes only typed errors', { timeout: 120_000 }, () => {
  test.each(TARGETS)('$name', async (target) => {
    const [cases, seconds] = SAMPLES[target.name as keyof typeof SAMPLES]
    const { rows, findings } = await fuzz(ground, { targets: [target], seed: SEED, cases, seconds })
    const repro = findings.flatMap((each) =>
      each.cases.map((number) => `npm run fuzz -- --only '${each.target}/${SEED}/${number}'`),
    )
    expect(findings, repro.join('\n')).toEqual([])
    expect(rows[0]?.cases).toBeGreaterThan(0)
  })
})

test('an unknown target is refused', async () => {
  expect(await main(['--target', 'nonsense'], root)).toBe(2)
})

test('a run proves nothing if a target has few cases, or few calls that end well', () => {
  const row = { target: 'rows', findings: 0, slowOnce: 0, seconds: 60, grownBytes: 0 }
  const outcomes = (ok: number, failed: number) => ({
    calls: ok + failed,
    outcomes: new Map(Object.entries({ ok, STORE_UNAVAILABLE: failed })),
  })
  expect(tooLittle([{ ...row, cases: 10, ...outcomes(25, 75) }])).toEqual([])
  expect(tooLittle([{ ...row, cases: 9, ...outcomes(24, 76) }])).toEqual([
    'too few cases of rows: 9, but at least 10 are needed',
    'too few calls of rows ended well: 24 of 100',
  ])
  expect(tooLittle([{ ...row, cases: 20, ...outcomes(0, 0) }])).toHaveLength(1)
})
