import { type ChildProcess, spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import { fileURLToPath } from 'node:url'

/**
 * Ends a process and removes a folder when this runner ends, however it ends.
 *
 * A runner that is killed with SIGKILL can clean up nothing itself. So a second process, outside the runner's session,
 * holds the other end of a pipe; the kernel closes the pipe with the runner, and that is the sign to clean up.
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
  // One small write goes into the pipe within this call: a runner killed right after it has already told.
  reaper.stdin?.write(`${JSON.stringify(message)}\n`)
}

function startReaper(): ChildProcess {
  const script = fileURLToPath(new URL('./reaper-process.mjs', import.meta.url))
  const child = spawn(process.execPath, [script], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
    cwd: '/',
    env: { ...process.env, NODE_OPTIONS: '' }, // A test runner's own settings could load hooks that keep it from starting.
  })
  // Neither the process nor the pipe may keep a runner alive that has nothing else to do.
  child.unref()
  const pipe = child.stdin as Socket // Node makes child pipes from sockets; the type says only Writable.
  pipe.unref()
  pipe.on('error', () => {}) // A reaper that somebody killed is no reason to fail a test.
  // vitest's worker processes live on when the runner that started them is killed: then this one has to end too.
  process.once('disconnect', () => process.exit())
  return child
}
