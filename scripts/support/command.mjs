// @ts-check
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'

export const root = fileURLToPath(new URL('../..', import.meta.url))

/**
 * Runs a program to its end and returns its output, so that the caller decides whether to print it. Passes an interrupt
 * on and waits: the program ends the processes that it has started.
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
 * Runs a program of a development dependency with this Node, so that neither PATH nor the shell matters.
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
 * Whether Node was started with this file.
 *
 * @param {string} url its `import.meta.url`
 */
export const isMain = (url) => process.argv[1] !== undefined && fileURLToPath(url) === process.argv[1]
