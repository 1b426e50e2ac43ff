import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { metadataFrom, namesOf, resultFrom } from '../../../src/primitives/once/results.ts'
import { tickNames, tickOf } from '../../../src/primitives/once/tick.ts'

interface Vectors {
  names: { key: string; run: string; done: string }[]
  results: { result: unknown; metadata: Record<string, unknown> }[]
  schedules: { name: string; tick: string; overlap: boolean; key: string; run: string; done: string }[]
  ticks: { nowMs: number; everyMs: number; tick: string }[]
}

it('the names, results and ticks of once-only jobs match the test vectors', () => {
  const file = new URL('../../../protocol/vectors/once-only.json', import.meta.url)
  const { names, results, schedules, ticks } = JSON.parse(readFileSync(file, 'utf8')) as Vectors
  for (const { key, ...expected } of names) expect(namesOf(key)).toEqual(expected)
  for (const { result, metadata } of results) {
    expect(metadataFrom({ own: result, isReadable: true })).toEqual(metadata)
    expect(resultFrom('key', metadata)).toEqual(result)
  }
  for (const { name, tick, overlap, ...expected } of schedules) {
    expect(tickNames(name, tick, overlap)).toEqual(expected)
  }
  for (const { nowMs, everyMs, tick } of ticks) expect(tickOf(undefined, nowMs, everyMs)).toBe(tick)
})
