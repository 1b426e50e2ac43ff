import { type ChildProcess, spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import { fileURLToPath } from 'node:url'

/**
 * Ends processes and removes folders when this runner ends, in any way.
 *
 * A runner that is killed with SIGKILL cannot clean up. So a second process, outside the runner's session, holds the
 * other end of a pipe. The kernel closes the pipe when the runner ends, and the second process then cleans up.
 */
export function reapProcess(pid: number, signal: NodeJS.Signals = 'SIGKILL'): () => void {
  tell({ watch: pid, signal })
  return () => tell({ forget: pid })
}

export function reapFolder(folder: string): () => void {
  tell({ watch: folder })
  return () => tell({ forget: folder })
}

type Message = { watch: number | string; signal?: NodeJS.Signals } | { forget: number | string }

let reaper: ChildProcess | undefined

function tell(message: Message): void {
  reaper ??= startReaper()
  // A small write reaches the pipe within this call, even if the runner is killed right after it.
  reaper.stdin?.write(`${JSON.stringify(message)}\n`)
}

function startReaper(): ChildProcess {
  const script = fileURLToPath(new URL('./reaper-process.mjs', import.meta.url))
  const child = spawn(process.execPath, [script], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
    cwd: '/',
    env: { ...process.env, NODE_OPTIONS: '' }, // The test runner's hooks could keep it from starting.
  })
  // Neither the process nor the pipe may keep the runner alive.
  child.unref()
  const pipe = child.stdin as Socket // Node makes child pipes from sockets; the type says only Writable.
  pipe.unref()
  pipe.on('error', () => {}) // A test does not fail because its reaper was killed.
  // vitest's worker processes survive the runner if it is killed. Then this one has to end, too.
  process.once('disconnect', () => process.exit())
  return child
}
