import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Folder } from './folders.ts'
import { killProcess, pauseProcess, resumeProcess, until } from './processes.ts'
import { reapProcess } from './reaper.ts'

/** A server that this process has started, and may kill, pause or restart. */
export interface Server extends AsyncDisposable {
  readonly url: string
  readonly port: number
  /** Changes with every restart. */
  readonly pid: number
  /** The server's output so far, over all its restarts. */
  log(): string
  /** Shuts it down. Its folder stays, so that `restart` finds the data. */
  stop(): Promise<void>
  /** SIGKILL to the server and its children. */
  kill(): Promise<void>
  /** Pauses it (SIGSTOP): connections stay open, but nothing answers. */
  pause(): Promise<void>
  resume(): void
  /** Stops it if it runs, and starts it on the same port with the same data. Resolves when it answers. */
  restart(): Promise<void>
}

export interface Launch {
  name: string
  command: string
  args: string[]
  port: number
  url: string
  folder: Folder
  env?: Record<string, string> | undefined
  /** The user that the server runs as. PostgreSQL and PgBouncer refuse root. */
  user?: { uid: number; gid: number } | undefined
  /** The signal for a shutdown, and the one for a faster shutdown that still cleans up. */
  signals: { stop: NodeJS.Signals; reap: NodeJS.Signals }
  /** Whether the server at the port answers and is this one: another run may have taken the port first. */
  isReady(pid: number): Promise<boolean>
  /** Removes what a SIGKILL may have left outside the folder. */
  cleanUp?(): void
}

const START_TIMEOUT_MS = 30_000
const STOP_TIMEOUT_MS = 5_000

/** Starts a server, and resolves when it answers. Rejects with its output if it ends or does not answer. */
export async function launch(what: Launch): Promise<Server> {
  const logFile = join(what.folder.path, 'log')
  let child = await start(what, logFile).catch((error) => {
    what.folder.remove()
    throw error
  })

  const server: Server = {
    url: what.url,
    port: what.port,
    get pid() {
      return pidOf(child)
    },
    log: () => readFileSync(logFile, 'utf8'),
    async stop() {
      if (hasEnded(child)) return
      resumeProcess(pidOf(child)) // A paused server does not handle the signal.
      child.kill(what.signals.stop)
      const inTime = { timeoutMs: STOP_TIMEOUT_MS, failure: () => `${what.name} did not stop` }
      await until(() => hasEnded(child), inTime).catch(server.kill)
    },
    async kill() {
      if (hasEnded(child)) return
      await killProcess(pidOf(child))
      await until(() => hasEnded(child), { timeoutMs: STOP_TIMEOUT_MS, failure: () => `${what.name} survived SIGKILL` })
    },
    pause: () => pauseProcess(pidOf(child)),
    resume: () => resumeProcess(pidOf(child)),
    async restart() {
      await server.stop()
      child = await start(what, logFile)
    },
    async [Symbol.asyncDispose]() {
      if (!hasEnded(child)) {
        resumeProcess(pidOf(child))
        child.kill(what.signals.reap)
        await until(() => hasEnded(child), { timeoutMs: 2_000, failure: () => '' }).catch(server.kill)
      }
      what.cleanUp?.()
      what.folder.remove()
    },
  }
  return server
}

async function start(what: Launch, logFile: string): Promise<ChildProcess> {
  const log = openSync(logFile, 'a')
  const child = spawn(what.command, what.args, {
    cwd: what.folder.path,
    env: { ...process.env, LC_ALL: 'C', ...what.env },
    // In its own session, so that an interrupt from the terminal reaches only the runner, which ends the servers.
    detached: true,
    stdio: ['ignore', log, log],
    ...what.user,
  })
  closeSync(log)
  let spawnError: Error | undefined
  child.on('error', (error) => {
    spawnError = error
  })
  if (child.pid !== undefined) {
    const forget = reapProcess(child.pid, what.signals.reap)
    child.once('exit', forget)
  }
  child.unref()

  const isUp = async () => {
    if (hasEnded(child)) throw new Error(failure(what, logFile, 'ended at once'), { cause: spawnError })
    return what.isReady(pidOf(child)).catch(() => false)
  }
  try {
    await until(isUp, { timeoutMs: START_TIMEOUT_MS, failure: () => failure(what, logFile, 'does not answer') })
  } catch (error) {
    if (!hasEnded(child)) await killProcess(pidOf(child))
    throw error
  }
  return child
}

function hasEnded(child: ChildProcess): boolean {
  return child.pid === undefined || child.exitCode !== null || child.signalCode !== null
}

function pidOf(child: ChildProcess): number {
  if (child.pid === undefined) throw new Error('the server was never started')
  return child.pid
}

function failure(what: Launch, logFile: string, how: string): string {
  const lastLines = readFileSync(logFile, 'utf8').trim().split('\n').slice(-8).join('\n')
  return `${what.name} on port ${what.port} ${how}; it printed:\n${lastLines}`
}
