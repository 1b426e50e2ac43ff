import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { exists, failureIn } from '../../chaos/mutants/checks.mjs'
import { MUTANTS, mutated } from '../../chaos/mutants/mutant.mjs'

const root = fileURLToPath(new URL('../..', import.meta.url))

test.each(MUTANTS)('the mutant $name matches its file exactly once', (mutant) => {
  const before = readFileSync(join(root, mutant.file), 'utf8')
  expect(mutated(mutant, root)).not.toBe(before)
})

test('there are many mutants, with different names', () => {
  expect(new Set(MUTANTS.map(({ name }) => name)).size).toBe(MUTANTS.length)
  expect(MUTANTS.length).toBeGreaterThanOrEqual(30)
})

test.each(MUTANTS)('the mutant $name has checks that exist', ({ checks, file }) => {
  expect(existsSync(join(root, file))).toBe(true)
  expect(checks.filter((name) => exists(name, root))).toEqual(checks)
})

test('a mutant that matches twice, or never, is an error', () => {
  const mutant = { name: 'no', breaks: '', file: 'package.json', replace: '', checks: [] }
  expect(() => mutated({ ...mutant, search: '"' }, root)).toThrow(/the mutant no matches \d+ times/)
  expect(() => mutated({ ...mutant, search: 'not in this file' }, root)).toThrow('matches 0 times')
})

test.each([
  [
    'test/a.test.ts',
    1,
    ' FAIL  test/a.test.ts > a\n Test Files  1 failed (1)\n      Tests  1 failed | 2 passed (3)',
    'a',
  ],
  ['test/a.test.ts', 1, ' Test Files  1 passed (1)\n      Tests  1 passed (1)\n     Errors  1 error\nlast', 'last'],
  // Its failure was not reported: the run ended too early.
  ['test/a.test.ts', 1, ' Test Files   (1)\n      Tests  7 passed | 910 skipped (982)\nlast', 'last'],
  ['simulation', 1, 'seed 7: "two holders"\n', 'seed 7: "two holders"'],
  ['test/a.test.ts', 0, '      Tests  2 passed (2)', undefined],
  ['test/a.test.ts', 'timeout', '      Tests  1 failed | 2 passed (3)', undefined],
  // It could not run.
  [
    'test/a.test.ts',
    1,
    ' FAIL  test/a.test.ts [ test/a.test.ts ]\n Test Files  1 failed (1)\n      Tests  no tests',
    undefined,
  ],
  ['test/a.test.ts', 1, ' FAIL  test/a.test.ts\n Test Files  1 failed (1)\n      Tests  1 skipped (1)', undefined],
  ['simulation', 1, 'x [ERROR] Could not resolve "./src/testing"\n', undefined],
] as const)('a check catches a mutant only if it ran: %s with exit code %s', (name, code, output, failure) => {
  expect(failureIn(name, code, output)).toBe(failure)
})
