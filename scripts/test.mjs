// @ts-check
// The test command: builds, checks and tests. Prints failures in full, and then one line with the counts, in which each
// check counts as a test.
//
//   npm test                                   everything
//   npm test -- test/core -t "a stale holder"  only these tests, without the checks. The arguments are vitest's
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs'
import { build } from './build.mjs'
import { check, report } from './check.mjs'
import { root, runTool } from './support/command.mjs'

const filters = process.argv.slice(2)
const built = await build()
if (built.code !== 0) {
  report([{ name: 'build', ...built }])
  close({ passed: 0, failed: 1, skipped: 0 })
} else {
  // Not at the same time: tests of timing would share the cores with the checks.
  const findings = filters.length === 0 ? await check() : []
  report(findings)
  const tests = await runTests()
  const failedChecks = findings.filter(({ code }) => code !== 0).length
  close({
    passed: tests.passed + findings.length - failedChecks,
    failed: tests.failed + failedChecks,
    skipped: tests.skipped,
  })
}

/** @typedef {{ passed: number, failed: number, skipped: number }} Counts */

/** @returns {Promise<Counts>} */
async function runTests() {
  const file = `${root}.cache/tests-${process.pid}.json`
  mkdirSync(`${root}.cache`, { recursive: true })
  try {
    const args = ['run', '--reporter=agent', '--reporter=json', `--outputFile.json=${file}`, ...filters]
    const colour = process.stdout.isTTY ? { FORCE_COLOR: '1' } : { NO_COLOR: '1' }
    const { code, output, signal } = await runTool('vitest/vitest.mjs', args, { env: { ...process.env, ...colour } })
    const counts = existsSync(file) ? countsOf(JSON.parse(readFileSync(file, 'utf8'))) : none()
    // vitest failed without a failed test: an error outside of any test, or no report at all.
    if (code !== 0 && counts.failed === 0) counts.failed = 1
    if (counts.failed > 0) process.stdout.write(`\n── tests${signal ? ` (ended by ${signal})` : ''}\n${output}\n`)
    if (counts.failed === 0 && counts.passed === 0) {
      process.stdout.write(`\n── tests\nno test was run\n${output}\n`)
      process.exitCode = 1
    }
    return counts
  } finally {
    rmSync(file, { force: true })
  }
}

/**
 * @param {object} result as vitest's JSON reporter writes it
 * @param {number} result.numPassedTests
 * @param {number} result.numFailedTests
 * @param {number} result.numPendingTests
 * @param {number} [result.numTodoTests]
 * @param {{ status: string, assertionResults: { status: string }[] }[]} result.testResults
 * @returns {Counts}
 */
function countsOf({ numPassedTests, numFailedTests, numPendingTests, numTodoTests = 0, testResults }) {
  // A file that fails to load, or whose hook fails, has no failed test, but counts as a failure.
  const brokenFiles = testResults.filter(
    ({ status, assertionResults }) =>
      status === 'failed' && !assertionResults.some((assertion) => assertion.status === 'failed'),
  )
  return {
    passed: numPassedTests,
    failed: numFailedTests + brokenFiles.length,
    skipped: numPendingTests + numTodoTests,
  }
}

function none() {
  return { passed: 0, failed: 0, skipped: 0 }
}

/** @param {Counts} counts */
function close({ passed, failed, skipped }) {
  process.stdout.write(`${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}\n`)
  if (failed > 0) process.exitCode = 1
}
