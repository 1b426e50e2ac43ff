import { type ChildProcess, spawn } from 'node:child_process'
import type { Lease } from '../core/lease/lease.ts'
import { LEFT_AT } from '../core/lease/renewer.ts'
import { exitCodes, signalCode } from './exit-codes.ts'
import { say } from './text.ts'

/** How a command ended that ran under a lease. */
export interface Supervised {
  /** The exit code for `holdfast`. */
  readonly code: number
  /** Not by `code`: a command may have any exit code of its own. */
  readonly isLost: boolean
}

/**
 * Runs a command in its own process group while the lease lasts.
 *
 * If renewals fail, the group gets SIGTERM and then SIGKILL (`LEFT_AT` says when). Both come before the lease ends, so
 * that the next holder's command never runs beside this one.
 */
export async function superviseCommand(
  [program, ...args]: readonly [string, ...string[]],
  lease: Lease,
  ttlMs: number,
): Promise<Supervised> {
  // All of this comes before the command starts: a signal for us, or our end, may follow the start at once.
  const guard = startGuard()
  let group: number | undefined
  let watch: ReturnType<typeof watchLease> | undefined
  const passOn = (signal: NodeJS.Signals): void => signalGroup(group, signal)
  const endSuspension = suspendTogether({
    suspend: () => signalGroup(group, 'SIGSTOP'),
    resume: () => {
      watch?.check()
      signalGroup(group, 'SIGCONT')
    },
  })
  for (const signal of PASSED_ON) process.on(signal, passOn)
  const child = spawn(program, args, {
    stdio: 'inherit',
    detached: true,
    env: {
      ...process.env,
      HOLDFAST_LOCK_NAME: lease.lockName,
      HOLDFAST_HOLDER_ID: lease.holderId,
      HOLDFAST_FENCING_TOKEN: String(lease.fencingToken),
    },
  })
  group = child.pid
  guard.stdin?.write(`${group ?? ''}\n`)
  const exited = exitOf(child)
  watch = watchLease(lease, ttlMs, group)
  try {
    const code = await exited
    // `held` reads the clocks: after a stall of this process, the command's exit can arrive before any timer has run.
    if (!watch.lost && lease.held) return { code, isLost: false }
    // The command has ended, but its children may still run.
    signalGroup(group, 'SIGKILL')
    const what = watch.lost ? 'could not be renewed, and the command was ended' : 'had ended before the command did'
    say(`the lease on "${lease.lockName}" ${what}`)
    return { code: exitCodes.lost, isLost: true }
  } finally {
    watch.stop()
    guard.stdin?.end('done\n')
    for (const signal of PASSED_ON) process.off(signal, passOn)
    endSuspension()
  }
}

/** Runs a command in the foreground, without a lease, and returns its exit code. Signals are passed on to it. */
export async function runCommand([program, ...args]: readonly [string, ...string[]]): Promise<number> {
  const child = spawn(program, args, { stdio: 'inherit' })
  // A terminal sends what its keys mean to the command as well. Passed on, one Ctrl-C would be two, and many programs
  // take the second one for an order to end without cleaning up.
  const isOnTerminal = [process.stdin, process.stdout, process.stderr].some(({ isTTY }) => isTTY)
  const passOn = (signal: NodeJS.Signals): void => {
    if (!isOnTerminal || !BY_TERMINAL.includes(signal)) child.kill(signal)
  }
  for (const signal of PASSED_ON) process.on(signal, passOn)
  try {
    return await exitOf(child)
  } finally {
    for (const signal of PASSED_ON) process.off(signal, passOn)
  }
}

const BY_TERMINAL: readonly NodeJS.Signals[] = ['SIGINT', 'SIGQUIT', 'SIGWINCH']
const PASSED_ON: readonly NodeJS.Signals[] = [...BY_TERMINAL, 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGUSR2']

/**
 * Suspends the command together with this process (Ctrl-Z): it must not run while no process renews its lease. The
 * lease is checked before the command continues. Returns a function that ends it.
 */
function suspendTogether({ suspend, resume }: { suspend: () => void; resume: () => void }): () => void {
  /** A second Ctrl-Z is delivered only after the resumption. It meant the suspension before, so it is ignored. */
  let justResumed = false
  const stop = (): void => {
    if (justResumed) return
    suspend()
    process.kill(process.pid, 'SIGSTOP')
    // Execution continues here after SIGCONT.
    justResumed = true
    setImmediate(() => {
      justResumed = false
    })
  }
  process.on('SIGTSTP', stop).on('SIGCONT', resume)
  return () => void process.off('SIGTSTP', stop).off('SIGCONT', resume)
}

/** Ends the process group before the lease ends. */
function watchLease(lease: Lease, ttlMs: number, group: number | undefined) {
  const watch = { lost: false, check, stop: () => clearInterval(timer) }
  let terminated = false
  function check(): void {
    const leftMs = lease.remainingSeconds * 1_000
    if (leftMs > ttlMs * LEFT_AT.terminate) return
    watch.lost = true
    if (leftMs <= ttlMs * LEFT_AT.kill) {
      signalGroup(group, 'SIGKILL')
      watch.stop()
    } else if (!terminated) {
      terminated = true
      signalGroup(group, 'SIGTERM')
    }
  }
  const timer = setInterval(check, Math.max(5, ttlMs / 50))
  lease.signal.addEventListener('abort', check, { once: true })
  return watch
}

/**
 * Starts a shell that kills the process group if this process ends without writing "done", for example after `kill -9`.
 * Otherwise the command would run beside the next holder's. The shell reads the group's number first, and then waits on
 * the pipe: it is the smallest program that outlives us and notices our end.
 */
function startGuard(): ChildProcess {
  // POSIX has `kill -s KILL --`; dash does not understand `kill -KILL --`.
  const script = 'read -r group; read -r word; [ -z "$group" ] || [ "$word" = done ] || kill -s KILL -- "-$group"'
  const guard = spawn('/bin/sh', ['-c', script, 'holdfast-guard'], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  })
  guard.on('error', (error) => say(`cannot guard the command against kill -9: ${error.message}`))
  guard.stdin?.on('error', () => guard.kill())
  guard.unref()
  return guard
}

function exitOf(child: ChildProcess): Promise<number> {
  return new Promise((resolve) => {
    child.on('error', (error: NodeJS.ErrnoException) => {
      const reason = reasons[error.code ?? ''] ?? error.message
      say(`cannot run "${child.spawnfile}": ${reason}`)
      resolve(error.code === 'ENOENT' ? exitCodes.notFound : exitCodes.notExecutable)
    })
    child.on('exit', (code, signal) => {
      resolve(signal === null ? (code ?? 0) : signalCode(signal))
    })
  })
}

const reasons: Record<string, string> = { ENOENT: 'no such command', EACCES: 'it is not executable' }

function signalGroup(group: number | undefined, signal: NodeJS.Signals): void {
  if (group === undefined) return
  try {
    process.kill(-group, signal)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    // We must not fail here: the command would run on, with no process left that tries again.
    if (code === 'EPERM') say(`cannot send ${signal} to the command: it runs as another user`)
    // ESRCH: every process of the group has ended.
    else if (code !== 'ESRCH') throw error
  }
}
