import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { exists } from '../../chaos/mutants/checks.mjs'
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
