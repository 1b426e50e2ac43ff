// @ts-check
// Prints the cases of the TypeScript conformance suite next to the Python test of the same title, for each store of the
// Python tests, and fails if one is missing. Needs a built dist/ and the Python packages of the tests.
//
//   npm run conformance

import { withoutCounterpart } from './conformance/only-typescript.mjs'
import { typescriptCases } from './conformance/typescript-cases.mjs'
import { isMain, root, run } from './support/command.mjs'

/** @typedef {'passed' | 'failed' | 'skipped' | 'collected'} Outcome */
/** @typedef {{ store: string, key: string, outcome: Outcome }} PythonCase */
/** @typedef {{ title: string, cells: Record<string, string> }} Row */
/** @typedef {Map<string, Row[]>} Groups */
/** @typedef {{ stores: string[], groups: Groups, gaps: string[], exceptions: Map<string, string> }} Comparison */

/** The driver of TypeScript whose capabilities a store of the Python tests has, by the first words of its name. */
const drivers = [
  { store: /^memory/, driver: 'memory' },
  { store: /^sqlite/, driver: 'sqlite' },
  { store: /^redlock/, driver: 'redlock' },
  { store: /^(redis-)?cluster/, driver: 'redis cluster' },
  { store: /^redis/, driver: 'redis' },
  { store: /^postgres-advisory/, driver: 'postgres-advisory' },
  { store: /^postgres/, driver: 'postgres' },
]

/**
 * Compares what the two languages test.
 *
 * For each driver one store has to have every case. The others, which differ in the client, need only those that the
 * TypeScript suite runs for a second client.
 *
 * @param {readonly PythonCase[]} pythonCases
 * @returns {Promise<Comparison>}
 */
export async function compare(pythonCases) {
  /** @type {Comparison} */
  const found = { stores: [], groups: new Map(), gaps: [], exceptions: new Map() }
  found.stores = [...new Set(pythonCases.map(({ store }) => store))]
  const outcomes = new Map(pythonCases.map(({ store, key, outcome }) => [`${store}: ${key}`, outcome]))
  const unknown = found.stores.filter((store) => driverOf(store) === undefined)
  for (const store of unknown) found.gaps.push(`the store "${store}" has no driver in scripts/conformance-table.mjs`)

  for (const driver of new Set(drivers.map((each) => each.driver))) {
    const stores = found.stores.filter((store) => driverOf(store) === driver)
    if (stores.length === 0) found.gaps.push(`${driver}: no Python test runs the suite on it`)
    const cases = await typescriptCases(driver)
    const ofSecondClient = new Set((await typescriptCases(driver, true)).map(({ key }) => key))
    const missing = cases.flatMap((each) => missingIn(each, driver, stores, outcomes, found))
    const complete = stores.find((store) => !missing.some((each) => each.store === store)) ?? stores[0]
    const needed = missing.filter(({ store, key }) => store === complete || ofSecondClient.has(key))
    found.gaps.push(...needed.map(({ store, key, outcome }) => `${store}: ${key}: ${outcome}`))
  }
  return found
}

/**
 * Adds a case to the table, or to the exceptions. Returns the stores whose Python tests lack it.
 *
 * @param {import('./conformance/typescript-cases.mjs').TypeScriptCase} typescriptCase
 * @param {string} driver
 * @param {readonly string[]} stores
 * @param {ReadonlyMap<string, Outcome>} outcomes
 * @param {Comparison} found
 */
function missingIn({ group, title, key, isSkipped }, driver, stores, outcomes, found) {
  // An exception that Python has nevertheless is compared like any other case. It has not if all its stores skip it.
  const isInPython = stores.some((store) => (outcomes.get(`${store}: ${key}`) ?? 'skipped') !== 'skipped') || isSkipped
  const reason = isInPython ? undefined : withoutCounterpart(driver, group, title)
  if (reason !== undefined) {
    found.exceptions.set(key, reason)
    return []
  }
  const rows = found.groups.get(group) ?? []
  found.groups.set(group, rows)
  const row = rows.find((each) => each.title === title) ?? { title, cells: {} }
  if (!rows.includes(row)) rows.push(row)
  return stores.flatMap((store) => {
    const outcome = outcomes.get(`${store}: ${key}`)
    row.cells[store] = isSkipped && outcome !== 'failed' ? 'n/a' : (outcome ?? 'MISSING')
    // A test that failed is there, and is reported by itself. One that is skipped only in Python is a gap.
    const isPresent = outcome !== undefined && outcome !== 'skipped'
    return isPresent || isSkipped ? [] : [{ store, key, outcome: outcome ?? 'there is no such test' }]
  })
}

/** @param {string} store */
const driverOf = (store) => drivers.find((each) => each.store.test(store))?.driver

/**
 * The case that a Python test runs. Undefined for other tests.
 *
 * @param {string} name of the test: `test_conformance[store: group: title]`
 * @param {Outcome} outcome
 * @returns {PythonCase | undefined}
 */
export function pythonCase(name, outcome) {
  const [, store, key] = /^test_conformance\[([^:]+): (.*)\]$/s.exec(name) ?? []
  return store === undefined || key === undefined ? undefined : { store, key, outcome }
}

/** pytest writes characters outside of ASCII as escapes. */
export const readable = (/** @type {string} */ id) =>
  id.replaceAll(/\\(?:U([\da-f]{8})|u([\da-f]{4})|x([\da-f]{2}))/g, (_, long, short, byte) =>
    String.fromCodePoint(Number.parseInt(long ?? short ?? byte, 16)),
  )

/** @returns {Promise<PythonCase[]>} */
async function collectedCases() {
  const python = process.env['HOLDFAST_TEST_PYTHON'] || '/usr/bin/python3'
  const args = ['-m', 'pytest', '--collect-only', '-q', '-p', 'no:cacheprovider', 'tests/conformance']
  const { code, output, stdout } = await run(python, args, { cwd: `${root}python` })
  if (code !== 0) throw new Error(`cannot collect the Python tests:\n${output}`)
  return stdout.split('\n').flatMap((line) => pythonCase(readable(line.replace(/^.*?::/, '')), 'collected') ?? [])
}

/** @param {Comparison} comparison */
export function printed({ stores, groups, gaps, exceptions }) {
  const lines = [...groups].flatMap(([group, rows]) => [
    '',
    `## ${group}`,
    '',
    `| case | ${stores.join(' | ')} |`,
    `| --- |${' --- |'.repeat(stores.length)}`,
    ...rows.map(({ title, cells }) => `| ${title} | ${stores.map((store) => cells[store] ?? '').join(' | ')} |`),
  ])
  const reasons = new Map([...exceptions].map(([key, reason]) => [reason, /** @type {string[]} */ ([key])]))
  for (const [key, reason] of exceptions) if (!reasons.get(reason)?.includes(key)) reasons.get(reason)?.push(key)
  const without = [...reasons].flatMap(([reason, keys]) => ['', `${reason}:`, '', ...keys.map((key) => `- ${key}`)])
  return [
    '# The conformance cases of TypeScript, and the Python tests of the same titles',
    '',
    'n/a: the driver lacks what the case needs, in both languages. An empty cell: another driver.',
    ...lines,
    ...(without.length > 0 ? ['', '## Without a counterpart in Python', ...without] : []),
    '',
    gaps.length === 0 ? 'No gap.' : `## ${gaps.length} gaps\n\n${gaps.map((gap) => `- ${gap}`).join('\n')}`,
    '',
  ].join('\n')
}

if (isMain(import.meta.url)) {
  const comparison = await compare(await collectedCases())
  process.stdout.write(printed(comparison))
  process.exitCode = comparison.gaps.length === 0 ? 0 : 1
}
