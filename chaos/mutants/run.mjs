// @ts-check
// Shows that the evidence bites: applies one mutant after the other to a copy of the repository, and runs checks on it
// until one fails. See README.md.
//
//   npm run mutants
//   npm run mutants -- --only margin-removed,redis-queue-is-lifo
import { cpSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { root } from '../../scripts/support/command.mjs'
import { exists, needsBuild, node, runCheck, together } from './checks.mjs'
import { apply, MUTANTS } from './mutant.mjs'

/** @import { Mutant } from './mutant.mjs' */

/**
 * @typedef {object} Result
 * @property {string} mutant
 * @property {string} breaks
 * @property {string | undefined} caughtBy the check
 * @property {string} how its first failure
 * @property {number} seconds of all checks until then
 */

/** Two at a time: the checks start servers and many processes. */
const COPIES = 2
const NOT_COPIED = new Set(['node_modules', '.git', '.cache', 'docs', 'python', 'bench', 'examples'])

const { values } = parseArgs({ options: { only: { type: 'string' }, out: { type: 'string' } } })
process.exitCode = await main()

async function main() {
  const names = values.only?.split(',')
  const unknown = names?.find((name) => !MUTANTS.some((mutant) => mutant.name === name))
  if (unknown !== undefined) {
    process.stderr.write(`unknown mutant ${unknown}. Choose from:\n${MUTANTS.map(({ name }) => name).join('\n')}\n`)
    return 2
  }
  const mutants = MUTANTS.filter(({ name }) => names?.includes(name) ?? true)
  const folder = `${root}.cache/mutants-${process.pid}`
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }))
  for (const [signal, code] of /** @type {const} */ ([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ])) {
    process.on(signal, () => process.exit(code))
  }
  const copies = Array.from({ length: COPIES }, (_, at) => makeCopy(`${folder}/${at + 1}`))

  const results = await inCopies(copies, mutants, killMutant)
  // A check that failed must pass without a mutant. Otherwise it has proved nothing.
  const caughtBy = [...new Set(results.flatMap(({ caughtBy }) => caughtBy ?? []))]
  const broken = await inCopies(copies, together(caughtBy), failsUnmutated)
  const alive = results.filter(({ caughtBy }) => caughtBy === undefined)
  process.stdout.write(`\n${results.length - alive.length} of ${results.length} mutants were caught\n`)
  for (const { mutant } of alive) process.stdout.write(`alive: ${mutant}\n`)
  if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(results, undefined, 2)}\n`)
  return alive.length > 0 || broken.includes(true) ? 1 : 0
}

/**
 * A copy of what the checks need, with the installed packages of the repository.
 *
 * @param {string} copy
 */
function makeCopy(copy) {
  mkdirSync(copy, { recursive: true })
  for (const name of readdirSync(root)) {
    if (!NOT_COPIED.has(name)) cpSync(join(root, name), join(copy, name), { recursive: true })
  }
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'))
  return copy
}

/**
 * Works on the items in their order, one at a time in each copy.
 *
 * @template Item, Answer
 * @param {readonly string[]} copies
 * @param {readonly Item[]} items
 * @param {(item: Item, copy: string) => Promise<Answer>} work
 * @returns {Promise<Answer[]>}
 */
async function inCopies(copies, items, work) {
  /** @type {Answer[]} */
  const answers = []
  let next = 0
  await Promise.all(
    copies.map(async (copy) => {
      for (let at = next++; at < items.length; at = next++)
        answers[at] = await work(/** @type {Item} */ (items[at]), copy)
    }),
  )
  return answers
}

/**
 * @param {string} check
 * @param {string} copy
 * @returns {Promise<boolean>} whether it fails although nothing is broken
 */
async function failsUnmutated(check, copy) {
  if (needsBuild(check)) await build(copy)
  const { isPassed, seconds, output } = await runCheck(check, copy)
  if (!isPassed) process.stdout.write(`${output}\n`)
  const verdict = isPassed ? 'passes' : 'FAILS, and so proves nothing,'
  process.stdout.write(`without a mutant, ${check} ${verdict} in ${seconds.toFixed(1)} s\n`)
  return !isPassed
}

/**
 * @param {Mutant} mutant
 * @param {string} copy
 * @returns {Promise<Result>}
 */
async function killMutant(mutant, copy) {
  const undo = apply(mutant, copy)
  let seconds = 0
  try {
    for (const check of mutant.checks.filter((name) => exists(name, copy))) {
      if (needsBuild(check)) await build(copy)
      const result = await runCheck(check, copy)
      seconds += result.seconds
      if (result.failed === undefined) continue
      process.stdout.write(`${mutant.name}: caught by ${check} after ${seconds.toFixed(1)} s (${result.failed})\n`)
      return { mutant: mutant.name, breaks: mutant.breaks, caughtBy: check, how: result.failed, seconds }
    }
    process.stdout.write(`${mutant.name}: ALIVE after ${seconds.toFixed(1)} s of ${mutant.checks.join(', ')}\n`)
    return { mutant: mutant.name, breaks: mutant.breaks, caughtBy: undefined, how: '', seconds }
  } finally {
    undo()
  }
}

/** @param {string} copy */
async function build(copy) {
  const { code, output } = await node(['scripts/build.mjs'], copy)
  if (code !== 0) throw new Error(`the copy does not build:\n${output}`)
}
