import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, it } from 'vitest'

/** The known failures of locks on PostgreSQL, by their number in test titles, and those that a driver cannot have. */
const FAILURES = [1, 4, 5, 10, 11, 12, 13, 14, 15, 18, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 35]
const CANNOT_HAPPEN: Record<string, Record<number, string>> = {
  postgres: { 27: 'names are stored as they are, not as a hash that two of them could share' },
  'postgres-advisory': {},
}

describe('every known failure has a test with a real server and its number in the title', () => {
  const tested = testedFailures()
  for (const [driver, exceptions] of Object.entries(CANNOT_HAPPEN)) {
    it(driver, () => {
      const missing = FAILURES.filter((failure) => !(failure in exceptions) && !tested.get(driver)?.has(failure))
      assert.deepEqual(missing, [])
    })
  }
})

/** By the title of the group of a test: `postgres: …` or `postgres-advisory: …`. */
function testedFailures(): Map<string, Set<number>> {
  const found = new Map<string, Set<number>>()
  const folders = [import.meta.dirname, join(import.meta.dirname, '../postgres-advisory')]
  const files = folders.flatMap((folder) => readdirSync(folder).map((name) => join(folder, name)))
  for (const file of files.filter((name) => name.endsWith('.test.ts'))) {
    let driver = ''
    for (const line of readFileSync(file, 'utf8').split('\n')) {
      driver = /^describe\S*\('([\w-]+):/.exec(line)?.[1] ?? driver
      const numbers = /^\s+it\('failures? ([\d, ]+):/.exec(line)?.[1]?.split(',') ?? []
      found.set(driver, new Set([...(found.get(driver) ?? []), ...numbers.map(Number)]))
    }
  }
  return found
}
