import { expect, test } from 'vitest'
import { exitCodeOf, Tally, tableOf } from '../../chaos/report.ts'

const { report: empty } = new Tally('redlock', '7', {})
const well = { ...empty, grants: 10, faults: 10 }
const broken = { ...well, checks: { ...well.checks, fencing: 1 } }

test.each([
  ['nothing broke', well, 0],
  ['a violation', broken, 1],
  ['a violation that a loss explains', { ...well, excused: { exclusion: 1 } }, 0],
  ['a client that crashed', { ...well, problems: ['client 1 ended by itself'] }, 2],
  ['a violation and a client that crashed', { ...broken, problems: ['client 1 ended by itself'] }, 1],
  ['no grants', { ...well, grants: 0 }, 2],
  ['no faults', { ...well, faults: 0 }, 2],
])('the exit code for %s', (_, report, code) => {
  expect(exitCodeOf(report)).toBe(code)
})

test('the table names every check, and shows lost updates and signals with their rate and time', () => {
  const table = tableOf({
    ...broken,
    writes: 200,
    unchecked: { writes: 400, lost: 6, lostAfterCheck: 2 },
    signals: { running: { count: 9, p50: -12.5, p99: -0.25, worst: 1.5 }, stalled: { count: 0 } },
    violations: [{ what: 'fencing', episode: '7/1', lockName: 'order', text: 'it fell', leases: [], faults: [] }],
  })
  for (const check of Object.keys(empty.checks)) expect(table).toContain(`${check} ${check === 'fencing' ? 1 : 0}`)
  expect(table).toContain('0 of 200 updates were lost (0.00 %)')
  expect(table).toContain('6 of 400 updates were lost (1.50 %), 2 of them right after a check')
  expect(table).toContain('9: p50 -12.5 ms, p99 -0.3 ms, worst +1.5 ms')
  expect(table).toContain('fencing in episode 7/1: it fell')
})
