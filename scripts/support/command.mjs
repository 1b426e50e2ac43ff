// @ts-check
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'

export const root = fileURLToPath(new URL('../..', import.meta.url))

/**
 * Runs a program to its end and gives back all that it printed, so that whoever calls decides whether anybody needs to see it.
 * An interrupt is passed on and waited for: what the program started is its own to end.
 *
 * @param {string} program
 * @param {readonly string[]} args
 * @param {{ cwd?: string, env?: NodeJS.ProcessEnv }} [options]
 * @returns {Promise<{ code: number, output: string, stdout: string, signal: NodeJS.Signals | undefined }>}
 */
export function run(program, args, { cwd = root, env = process.env } = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] })
    /** @type {Buffer[]} */
    const all = []
    /** @type {Buffer[]} */
    const out = []
    child.stdout.on('data', (chunk) => {
      all.push(chunk)
      out.push(chunk)
    })
    child.stderr.on('data', (chunk) => all.push(chunk))
    /** @type {NodeJS.Signals | undefined} */
    let interrupted
    /** @param {NodeJS.Signals} signal */
    const passOn = (signal) => {
      interrupted = signal
      child.kill(signal)
    }
    process.on('SIGINT', passOn).on('SIGTERM', passOn)
    child.on('error', reject)
    child.on('close', (code, signal) => {
      process.off('SIGINT', passOn).off('SIGTERM', passOn)
      resolve({
        code: code ?? 1,
        output: Buffer.concat(all).toString(),
        stdout: Buffer.concat(out).toString(),
        signal: interrupted ?? signal ?? undefined,
      })
    })
  })
}

/**
 * A program of one of our development dependencies, run by this very Node, so that neither PATH nor the system's shell matters.
 *
 * @param {string} script its path under node_modules
 * @param {readonly string[]} args
 * @param {{ cwd?: string, env?: NodeJS.ProcessEnv }} [options]
 */
export function runTool(script, args, options) {
  return run(process.execPath, [`${root}node_modules/${script}`, ...args], options)
}

/**
 * @param {readonly string[]} args
 * @param {{ cwd?: string }} [options]
 */
export const tsc = (args, options) => runTool('typescript/bin/tsc', args, options)

/**
 * True in the file that Node was started with, false where it is imported.
 *
 * @param {string} url its `import.meta.url`
 */
export const isMain = (url) => process.argv[1] !== undefined && fileURLToPath(url) === process.argv[1]
