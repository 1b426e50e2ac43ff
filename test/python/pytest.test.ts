import { describe, expect, inject, test } from 'vitest'
import { compare, printed, pythonCase } from '../../scripts/conformance-table.mjs'
import { runPytest } from '../harness/pytest.ts'

// pytest runs while vitest collects this file, because each of its tests becomes one here: then a failure has its name,
// and the counts include it.
const { tests, output, code, isWhole } = await runPytest(inject('servers'))

const files = [...new Set(tests.map(({ file }) => file))].sort()

describe.each(files)('%s', (file) => {
  for (const { name, outcome, text } of tests.filter((each) => each.file === file)) {
    if (outcome === 'skipped') test.skip(`${name}: ${text}`, () => {})
    else
      test(name, () => {
        if (outcome === 'failed') throw new PytestFailure(text)
      })
  }
})

test('pytest has run every file to its end', () => {
  expect(tests.length, output).toBeGreaterThan(0)
  // Otherwise it has failed outside of any test.
  if (!tests.some(({ outcome }) => outcome === 'failed')) expect(code, output).toBe(0)
})

// Only if all of them ran. `npm run conformance` prints the whole table.
test.runIf(isWhole)(
  'every conformance case of TypeScript is a test in Python, on each store, and is not skipped there alone',
  async () => {
    const comparison = await compare(tests.flatMap(({ name, outcome }) => pythonCase(name, outcome) ?? []))
    expect(comparison.gaps, printed({ ...comparison, groups: new Map() })).toEqual([])
  },
)

/** The stack that matters is in the text. The one of this file would only hide it. */
class PytestFailure extends Error {
  constructor(text: string) {
    super(text)
    this.name = 'pytest'
    this.stack = `pytest: ${text}`
  }
}
