import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Pauses a process and its children (SIGSTOP), as a stalled machine would.
 * Resolves when they have stopped: a signal takes time to arrive.
 */
export async function pauseProcess(pid: number): Promise<void> {
  signalTree(pid, 'SIGSTOP')
  const stopped = (): boolean => {
    const running = processTree(pid).filter((each) => stateOf(each) === 'running')
    // A child that was forked while its parent was being stopped has missed the first signal.
    for (const each of running) signalOne(each, 'SIGSTOP')
    return running.length === 0
  }
  try {
    await until(stopped, { timeoutMs: 15_000, failure: () => `process ${pid} did not stop` })
  } catch (error) {
    resumeProcess(pid)
    throw error
  }
}

export function resumeProcess(pid: number): void {
  signalTree(pid, 'SIGCONT')
}

/** Kills a process and its children (SIGKILL), as a power cut would. Resolves when all have ended. */
export async function killProcess(pid: number): Promise<void> {
  const tree = signalTree(pid, 'SIGKILL')
  await Promise.all(tree.map((each) => waitForExit(each)))
}

export async function waitForExit(pid: number, timeoutMs = 10_000): Promise<void> {
  await until(() => !isAlive(pid), { timeoutMs, failure: () => `process ${pid} is still there after ${timeoutMs} ms` })
}

/** A zombie counts as dead: it runs nothing, and only waits for its parent to collect its exit code. */
export function isAlive(pid: number): boolean {
  return stateOf(pid) !== 'gone'
}

/** The process and its descendants, parents first. Found by parent, because PostgreSQL's backends leave the group. */
export function processTree(pid: number): number[] {
  return [pid, ...childrenOf(pid).flatMap(processTree)]
}

/** Polls a condition. `failure` makes the error's message, with the last state seen. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  { timeoutMs, failure, everyMs = 15 }: { timeoutMs: number; failure: () => string; everyMs?: number },
): Promise<void> {
  const deadline = performance.now() + timeoutMs
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(failure())
    await sleep(everyMs)
  }
}

/** Parents first, so that a stopped or dead parent forks no more children. */
function signalTree(pid: number, signal: NodeJS.Signals): number[] {
  const before = processTree(pid)
  signalOne(pid, signal)
  const tree = [...new Set([...before, ...processTree(pid)])]
  for (const each of tree) if (each !== pid) signalOne(each, signal)
  return tree
}

function signalOne(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    // The process has ended already: a kill has nothing left to do, and neither has a pause.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}

function stateOf(pid: number): 'running' | 'stopped' | 'gone' {
  if (process.platform !== 'linux') return existsBySignal(pid) ? 'stopped' : 'gone'
  const letter = readProc(`/proc/${pid}/stat`)?.replace(/^.*\) /s, '')[0]
  if (letter === undefined || letter === 'Z' || letter === 'X') return 'gone'
  return letter === 'T' || letter === 't' ? 'stopped' : 'running'
}

function existsBySignal(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

function childrenOf(pid: number): number[] {
  if (process.platform === 'linux') {
    return (readProc(`/proc/${pid}/task/${pid}/children`) ?? '').split(' ').filter(Boolean).map(Number)
  }
  return execFileSync('ps', ['-A', '-o', 'pid=,ppid='], { encoding: 'utf8', timeout: 5_000 })
    .split('\n')
    .map((line) => line.trim().split(/\s+/).map(Number))
    .flatMap(([child, parent]) => (child !== undefined && parent === pid ? [child] : []))
}

function readProc(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return undefined // The process has ended meanwhile.
  }
}
