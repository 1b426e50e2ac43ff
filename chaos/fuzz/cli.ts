import { spawn } from 'node:child_process'
import { join } from 'node:path'

export interface CliRun {
  readonly code: number | string
  readonly output: string
}

/** Runs the built program to its end. */
export function runCli(dist: string, args: readonly string[], env: NodeJS.ProcessEnv = {}): Promise<CliRun> {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [join(dist, 'cli/main.js'), ...args], {
      env: { ...process.env, NODE_OPTIONS: '', HOLDFAST_URL: 'memory:', ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: MAX_MS,
      killSignal: 'SIGKILL',
    })
    let output = ''
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => {
        if (output.length < MAX_OUTPUT) output += text
      })
    }
    child.once('close', (code, signal) => resolve({ code: code ?? signal ?? 'none', output }))
  })
}

const MAX_MS = 40_000
const MAX_OUTPUT = 1_000_000
