import { type ChildProcess, spawn } from 'node:child_process'
import { constants } from 'node:os'
import type { Lease } from '../core/lease/lease.ts'
import { exitCodes } from './exit-codes.ts'
import { say } from './text.ts'

/**
 * Runs a command for as long as the lease lasts, in a process group of its own, and answers with the code to end with.
 *
 * The group is asked to end when a third of the lease is left without a renewal having come through, and killed when a tenth is
 * left: before the lease ends, so that nobody else's command runs beside it.
 */
export async function superviseCommand(
  [program, ...args]: readonly [string, ...string[]],
  lease: Lease,
  ttlMs: number,
): Promise<number> {
  // All of it before the command is there: as soon as it is, it may do something that makes somebody signal or kill us.
  const guard = startGuard()
  let group: number | undefined
  let watch: LeaseWatch | undefined
  const passOn = (signal: NodeJS.Signals): void => signalGroup(group, signal)
  const suspension = new Suspension({
    suspend: () => signalGroup(group, 'SIGSTOP'),
    resume: () => {
      watch?.look()
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
  watch = new LeaseWatch(lease, ttlMs, group)
  try {
    const code = await exited
    // Asked off the clocks: after a stall of this process, the command's end can be heard of before any timer has run.
    if (!watch.lost && lease.held) return code
    // The command itself has ended; what it started may not have.
    signalGroup(group, 'SIGKILL')
    const what = watch.lost ? 'could not be kept, and the command was ended' : 'had ended before the command did'
    say(`the lease on "${lease.lockName}" ${what}`)
    return exitCodes.lost
  } finally {
    watch.stop()
    guard.stdin?.end('done\n')
    for (const signal of PASSED_ON) process.off(signal, passOn)
    suspension.end()
  }
}

const PASSED_ON: readonly NodeJS.Signals[] = [
  'SIGINT',
  'SIGTERM',
  'SIGHUP',
  'SIGQUIT',
  'SIGUSR1',
  'SIGUSR2',
  'SIGWINCH',
]

/** Suspended from the terminal (Ctrl-Z): the command must not go on while nobody renews. It comes back after a look at the lease. */
class Suspension {
  readonly #suspend: () => void
  readonly #resume: () => void
  /** Whoever presses the key twice wants to suspend once: the second one would otherwise be heard of only after the resumption. */
  #justResumed = false

  constructor({ suspend, resume }: { suspend: () => void; resume: () => void }) {
    this.#resume = resume
    this.#suspend = () => {
      if (this.#justResumed) return
      suspend()
      process.kill(process.pid, 'SIGSTOP')
      // Here it goes on after SIGCONT.
      this.#justResumed = true
      setImmediate(() => {
        this.#justResumed = false
      })
    }
    process.on('SIGTSTP', this.#suspend).on('SIGCONT', this.#resume)
  }

  end(): void {
    process.off('SIGTSTP', this.#suspend).off('SIGCONT', this.#resume)
  }
}

class LeaseWatch {
  readonly #lease: Lease
  readonly #ttlMs: number
  readonly #group: number | undefined
  readonly #timer: NodeJS.Timeout
  #asked = false
  lost = false

  constructor(lease: Lease, ttlMs: number, group: number | undefined) {
    this.#lease = lease
    this.#ttlMs = ttlMs
    this.#group = group
    this.#timer = setInterval(() => this.look(), Math.max(5, ttlMs / 50))
    lease.signal.addEventListener('abort', () => this.look(), { once: true })
  }

  look(): void {
    const leftMs = this.#lease.remainingSeconds * 1_000
    if (leftMs > this.#ttlMs / 3) return
    this.lost = true
    if (leftMs <= this.#ttlMs / 10) {
      signalGroup(this.#group, 'SIGKILL')
      this.stop()
    } else if (!this.#asked) {
      this.#asked = true
      signalGroup(this.#group, 'SIGTERM')
    }
  }

  stop(): void {
    clearInterval(this.#timer)
  }
}

/**
 * Ends the group, whose number it is told first, when this process is gone without having said "done", as after `kill -9`: the command
 * must not go on beside the next holder's. A shell that waits on a pipe is the smallest thing that outlives us and notices.
 */
function startGuard(): ChildProcess {
  // `kill -s KILL --` is what POSIX has; dash does not understand `kill -KILL --`.
  const script = 'read -r group; read -r word; [ -z "$group" ] || [ "$word" = done ] || kill -s KILL -- "-$group"'
  const guard = spawn('/bin/sh', ['-c', script, 'holdfast-guard'], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  })
  guard.on('error', (error) => say(`the command is not guarded against kill -9: ${error.message}`))
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
      resolve(signal === null ? (code ?? 0) : exitCodes.signal + constants.signals[signal])
    })
  })
}

const reasons: Record<string, string> = { ENOENT: 'there is no such command', EACCES: 'it is not executable' }

function signalGroup(group: number | undefined, signal: NodeJS.Signals): void {
  if (group === undefined) return
  try {
    process.kill(-group, signal)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    // No use in dying of it: the command would still be there, and nobody left to try again.
    if (code === 'EPERM') say(`the command belongs to another user: no ${signal} for it`)
    // Otherwise nobody is left in it.
    else if (code !== 'ESRCH') throw error
  }
}
