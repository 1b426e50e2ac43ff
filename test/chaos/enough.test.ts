import { expect, test } from 'vitest'
import { tooLittle } from '../../chaos/enough.ts'
import { Tally } from '../../chaos/report.ts'

const { report } = new Tally('redis', '7', {})
const planned = { clients: 5, kinds: ['cut', 'held', 'silent', 'failover'] }
const well = { ...report, seconds: 60, grants: 100, faultsByKind: { cut: 9, held: 3, silent: 1, failover: 2 } }

test.each([
  ['enough of both', well, []],
  ['one of four kinds was not possible', { ...well, faultsByKind: { cut: 9, held: 3, silent: 1 } }, []],
  ['half of the kinds are missing', { ...well, faultsByKind: { cut: 9, held: 3 } }, ['Missing: silent, failover']],
  ['no faults', { ...well, faultsByKind: {} }, ['too few kinds of faults: 0, but at least 3']],
  ['too few grants for the time', { ...well, grants: 29 }, ['too few grants: 29, but at least 30 are needed']],
  ['fewer grants than clients', { ...well, seconds: 2, grants: 4 }, ['too few grants: 4, but at least 5 are needed']],
  [
    'a history that is too much to decide',
    { ...well, linear: { ...well.linear, undecided: ['episode 7/1: "pool"'] } },
    ['1 histories are not decided by the check of linearizability: episode 7/1: "pool"'],
  ],
])('whether a run proves something: %s', (_, report, reasons) => {
  const found = tooLittle(report, planned)
  expect(found).toHaveLength(reasons.length)
  for (const [at, reason] of reasons.entries()) expect(found[at]).toContain(reason)
})
