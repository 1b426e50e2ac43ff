// @ts-check
// Counts what a call passes through: the files and functions of src that V8 executes during one call, for each store.
//
//   npm run path                      the table, and the size of the code
//   npm run path -- redis --files     only this store; also lists the files and functions
//   npm run path -- --bytes           also measures what a pair of acquire and release allocates
import { parseArgs } from 'node:util'
import { openStage } from '../bench/support/stage.mjs'
import { CALLS, executedBy, STORES } from './path/calls.mjs'
import { compiled } from './path/coverage.mjs'
import { sizes } from './path/sizes.mjs'

/** @import { Executed } from './path/coverage.mjs' */

const { values, positionals } = parseArgs({
  options: { files: { type: 'boolean', default: false }, bytes: { type: 'boolean', default: false } },
  allowPositionals: true,
})
const unknown = positionals.find((each) => !STORES.some((store) => store === each))
if (unknown !== undefined) throw new Error(`${unknown} is not one of ${STORES.join(', ')}`)
const chosen = STORES.filter((store) => positionals.length === 0 || positionals.includes(store))

const settings = { quick: true, regimes: [], drivers: undefined, otherDist: undefined, rounds: 1, fsync: true }
const stage = openStage(settings, { onTable() {}, onPlot() {} })
try {
  const code = await compiled()
  /** @type {Map<string, Map<string, Executed>>} by store, then by call */
  const executed = new Map()
  for (const store of chosen) executed.set(store, await executedBy(code, store, await stage.stores(store)))
  printCalls(executed)
  if (values.files) for (const [store, calls] of executed) printFiles(store, calls)
  print('\nsize of the code', Object.entries(sizes()))
  if (values.bytes) {
    const { measureBytes } = await import('./path/bytes.mjs')
    print('\nbytes that a pair of acquire and release allocates', await measureBytes(stage))
  }
} finally {
  await stage[Symbol.asyncDispose]()
}

/** @param {ReadonlyMap<string, ReadonlyMap<string, Executed>>} executed */
function printCalls(executed) {
  const cells = [...executed.values()].map((calls) =>
    CALLS.map((call) => {
      const found = calls.get(call)
      return found === undefined ? '–' : `${found.size} / ${[...found.values()].flat().length}`
    }),
  )
  const rows = CALLS.map((call, at) => [call, ...cells.map((column) => column[at])])
  process.stdout.write('files / functions of src that a withLock executes\n')
  for (const [title = '', ...row] of [['', ...executed.keys()], ...rows]) {
    process.stdout.write(`  ${title.padEnd(28)}${row.map((cell = '') => cell.padStart(12)).join('')}\n`)
  }
}

/**
 * @param {string} store
 * @param {ReadonlyMap<string, Executed>} calls
 */
function printFiles(store, calls) {
  for (const [call, files] of calls) {
    process.stdout.write(`\n${store}, ${call}\n`)
    for (const [file, functions] of files) process.stdout.write(`  ${file}: ${functions.join(', ')}\n`)
  }
}

/**
 * @param {string} title
 * @param {readonly (readonly [string, number])[]} rows
 */
function print(title, rows) {
  process.stdout.write(`${title}\n`)
  for (const [name, count] of rows) {
    process.stdout.write(`  ${name.padEnd(64)}${Math.round(count).toLocaleString('en').padStart(8)}\n`)
  }
}
