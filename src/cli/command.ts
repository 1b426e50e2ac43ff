import { type ChildProcess, spawn } from 'node:child_process'
import { constants } from 'node:os'
import type { Lease } from '../core/lease.ts'
import { exitCodes } from './exit-codes.ts'

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
  const exited = exitOf(child)
  if (child.pid === undefined) return exited
  const group = -child.pid
  const guard = guardGroup(child.pid)
  const passOn = (signal: NodeJS.Signals): void => signalGroup(group, signal)
  for (const signal of PASSED_ON) process.on(signal, passOn)
  const watch = new LeaseWatch(lease, ttlMs, group)
  try {
    const code = await exited
    if (!watch.lost) return code
    // The command itself has ended; what it started may not have.
    signalGroup(group, 'SIGKILL')
    process.stderr.write(`holdfast: the lease on "${lease.lockName}" could not be kept, and the command was ended\n`)
    return exitCodes.lost
  } finally {
    watch.stop()
    guard.stdin?.end('done\n')
    for (const signal of PASSED_ON) process.off(signal, passOn)
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

class LeaseWatch {
  readonly #lease: Lease
  readonly #ttlMs: number
  readonly #group: number
  readonly #timer: NodeJS.Timeout
  #asked = false
  lost = false

  constructor(lease: Lease, ttlMs: number, group: number) {
    this.#lease = lease
    this.#ttlMs = ttlMs
    this.#group = group
    this.#timer = setInterval(() => this.#look(), Math.max(5, ttlMs / 50))
    lease.signal.addEventListener('abort', () => this.#look(), { once: true })
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  #look(): void {
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
}

/**
 * Ends the group when this process is gone without having said "done", as after `kill -9`: the command must not go on beside the
 * next holder's. A shell that waits on a pipe is the smallest thing that outlives us and notices.
 */
function guardGroup(pid: number): ChildProcess {
  const guard = spawn(
    '/bin/sh',
    ['-c', 'read -r word; [ "$word" = done ] || kill -KILL -- "-$1"', 'holdfast-guard', String(pid)],
    {
      stdio: ['pipe', 'ignore', 'ignore'],
      detached: true,
    },
  )
  guard.on('error', (error) =>
    process.stderr.write(`holdfast: the command is not guarded against kill -9: ${error.message}\n`),
  )
  guard.stdin?.on('error', () => guard.kill())
  guard.unref()
  return guard
}

function exitOf(child: ChildProcess): Promise<number> {
  return new Promise((resolve) => {
    child.on('error', (error: NodeJS.ErrnoException) => {
      process.stderr.write(`holdfast: ${error.message}\n`)
      resolve(error.code === 'ENOENT' ? exitCodes.notFound : exitCodes.notExecutable)
    })
    child.on('exit', (code, signal) => {
      resolve(signal === null ? (code ?? 0) : exitCodes.signal + constants.signals[signal])
    })
  })
}

function signalGroup(group: number, signal: NodeJS.Signals): void {
  try {
    process.kill(group, signal)
  } catch (error) {
    // Nobody is left in it.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}
