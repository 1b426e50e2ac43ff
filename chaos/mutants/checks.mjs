// @ts-check
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'

/**
 * What a check needs to run in a copy of the repository.
 *
 * @typedef {object} Check
 * @property {readonly string[]} args of Node
 * @property {NodeJS.ProcessEnv} [env]
 * @property {string} [needs] a file without which it cannot run
 * @property {RegExp} fails what it prints if it has found something. Without that it could not run
 */

/**
 * Checks that mutants call by a name. Every other name is a file of tests, or some tests of a file: `file :: pattern`.
 *
 * @type {Record<string, Check>}
 */
const NAMED = {
  simulation: { args: ['chaos/mutants/simulation.mjs'], fails: /^seed \d+: /m },
  model: test('test/chaos/model.test.ts', 'none'),
  programs: test('test/model/model.test.ts', 'none', { HOLDFAST_MODEL_RUNS: '3000' }),
  'redis histories': test('test/drivers/redis/histories.test.ts', 'none', { HISTORIES: '30' }),
}

/** A check that takes longer says nothing. The tests have timeouts of their own, which are shorter. */
const MAX_MS = 400_000

/**
 * @param {string} name
 * @param {string} [servers]
 * @param {NodeJS.ProcessEnv} [env]
 * @returns {Check}
 */
function test(name, servers = serversFor(name), env = {}) {
  const [file = name, pattern] = name.split(' :: ')
  const only = pattern === undefined ? [] : ['-t', pattern]
  const args = ['node_modules/vitest/vitest.mjs', 'run', '--bail', '1', '--reporter=agent', ...only, file]
  // With --bail, vitest may end before it has reported the failed test. Those that it skips did not run.
  const fails = /^ *(?:Tests .*\b\d+ (?:failed|passed)|Errors +\d+ error)/m
  return { args, env: { HOLDFAST_TEST_SERVERS: servers, NO_COLOR: '1', ...env }, needs: file, fails }
}

/**
 * The same checks in fewer runs: one for all patterns of a file.
 *
 * @param {readonly string[]} names
 */
export function together(names) {
  const patterns = new Map()
  for (const name of names) {
    const [file, pattern] = name.split(' :: ')
    patterns.set(file, [...(patterns.get(file) ?? []), pattern])
  }
  return [...patterns].map(([file, some]) => (some.includes(undefined) ? file : `${file} :: ${some.join('|')}`))
}

/**
 * Only the servers that the file needs, which start sooner than all of them.
 *
 * @param {string} file
 */
function serversFor(file) {
  if (file.includes('many-members')) return 'none'
  if (/\/(redis|redlock)\//.test(file)) return 'redis,cluster,sentinel'
  if (/\/postgres(-advisory)?\//.test(file)) return 'postgres,pgbouncer'
  return /\/(core|memory|sqlite)\//.test(file) ? 'none' : 'redis,cluster,sentinel,postgres,pgbouncer'
}

/**
 * @param {string} name
 * @returns {Check}
 */
const checkOf = (name) => NAMED[name] ?? test(name)

/**
 * Whether the check starts processes that use the built package. All others use the sources.
 *
 * @param {string} name
 */
export const needsBuild = (name) => /processes|known-failures|chaos|wire/.test(name) && name !== 'simulation'

/**
 * Whether the check can run in this copy.
 *
 * @param {string} name
 * @param {string} root
 */
export const exists = (name, root) => existsSync(join(root, checkOf(name).needs ?? ''))

/**
 * Runs a check. `failed` says how it failed: the first failed test, or the end of its output.
 *
 * @param {string} name
 * @param {string} root
 * @returns {Promise<{ failed: string | undefined, isPassed: boolean, seconds: number, output: string }>}
 */
export async function runCheck(name, root) {
  const { args, env } = checkOf(name)
  const startedMs = performance.now()
  const { code, output } = await node(args, root, env)
  const seconds = (performance.now() - startedMs) / 1_000
  // A pattern that matches no test would pass with every mutant.
  if (code === 0 && args.includes('-t') && !/Tests .*\d passed/.test(output)) throw new Error(`${name} runs no test`)
  if (code === 'timeout') process.stdout.write(`${name} did not end within ${MAX_MS / 1_000} s\n`)
  const failed = failureIn(name, code, output)
  if (typeof code === 'number' && code > 0 && failed === undefined) {
    process.stdout.write(`${name} could not run: ${reasonIn(output, code)}\n`)
  }
  return { failed, isPassed: code === 0, seconds, output }
}

/**
 * How a check failed. Undefined if it passed, and also if it could not run, such as without a server or with code that
 * does not compile: that says nothing about a mutant.
 *
 * @param {string} name
 * @param {number | 'timeout'} code
 * @param {string} output
 */
export function failureIn(name, code, output) {
  if (code === 0 || code === 'timeout' || !checkOf(name).fails.test(output)) return undefined
  return reasonIn(output, code)
}

/**
 * @param {string} output
 * @param {number} code
 */
function reasonIn(output, code) {
  const test = /^ ?FAIL {2}(?:\S+ > )?(.+)$/m.exec(output)?.[1]
  return test ?? output.trim().split('\n').at(-1) ?? `exit code ${code}`
}

/**
 * Runs Node in its own process group, so that nothing that it has started stays behind.
 *
 * @param {readonly string[]} args
 * @param {string} cwd
 * @param {NodeJS.ProcessEnv} [env]
 * @returns {Promise<{ code: number | 'timeout', output: string }>}
 */
export function node(args, cwd, env = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, args, {
      cwd,
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    })
    let output = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk))
    let isLate = false
    const end = () => {
      if (child.pid !== undefined && child.exitCode === null) process.kill(-child.pid, 'SIGTERM')
    }
    const timer = setTimeout(() => {
      isLate = true
      end()
    }, MAX_MS)
    process.on('exit', end)
    child.on('error', reject)
    child.on('close', (code) => {
      clearTimeout(timer)
      process.off('exit', end)
      resolve({ code: isLate ? 'timeout' : (code ?? 1), output })
    })
  })
}
