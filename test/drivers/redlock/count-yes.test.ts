import { describe, expect, test } from 'vitest'
import { countYes } from '../../../src/drivers/redlock/quorum.ts'

const failed = (count: number) =>
  Array.from({ length: count }, (_, at) => ({ node: `node ${at + 1}`, error: new Error('timeout') }))
const count = (answers: boolean[], errors: number, pending: number) =>
  countYes(2, { answers, errors: failed(errors), pending }, (answer) => answer)

describe('of three nodes, with a quorum of two', () => {
  test('a renewal that one node has confirmed is unknown if the others failed, and never counts', () => {
    expect(count([true], 2, 0)).toBe('unknown')
    expect(count([true], 1, 1)).toBeUndefined()
    expect(count([true, false], 1, 0)).toBe('unknown')
  })

  test('two nodes decide, without the third', () => {
    expect(count([true, true], 0, 1)).toBe('yes')
    expect(count([false, false], 0, 1)).toBe('no')
    expect(count([false, false], 1, 0)).toBe('no')
  })
})
