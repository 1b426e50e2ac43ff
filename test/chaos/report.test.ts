import { expect, test } from 'vitest'
import { exitCodeOf, Tally } from '../../chaos/report.ts'

const { report: empty } = new Tally('redlock', '7', {})
const well = { ...empty, grants: 10, faults: 10 }

test.each([
  ['nothing broke', well, 0],
  ['two holders', { ...well, overlaps: 1 }, 1],
  ['a falling token', { ...well, fallingTokens: 1 }, 1],
  ['a lease that came back', { ...well, resurrected: 1 }, 1],
  ['an overlap that a loss explains', { ...well, excusedOverlaps: 1 }, 0],
  ['a client that crashed', { ...well, problems: ['client 1 ended by itself'] }, 2],
  ['two holders and a client that crashed', { ...well, overlaps: 1, problems: ['client 1 ended by itself'] }, 1],
  ['no grants', { ...well, grants: 0 }, 2],
  ['no faults', { ...well, faults: 0 }, 2],
])('the exit code for %s', (_, report, code) => {
  expect(exitCodeOf(report)).toBe(code)
})
