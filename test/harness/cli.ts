import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { connect } from '../../src/connect.ts'
import type { Driver, LeaseRecord } from '../../src/core/driver.ts'
import { makeFolder } from './folders.ts'
import { isAlive, until, waitForExit } from './processes.ts'
import { reapProcess } from './reaper.ts'

/** The built program, as a user runs it. */
const PROGRAM = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url))
/** How long a short step may take on a busy machine. */
const PATIENCE_MS = 30_000

/** Signals that no test sends. What the program printed before says why it crashed. */
const CRASHES = new Set<NodeJS.Signals>(['SIGABRT', 'SIGSEGV', 'SIGBUS', 'SIGILL'])

/** Other test files run at the same time. */
export const SLOW = { timeout: 60_000 }

/** A command that prints "up", and ends when its standard input ends. */
export const UNTIL_CLOSED = ['sh', '-c', 'echo up; read -r line; echo over']

/** One run of `holdfast`. */
export interface Run {
  readonly pid: number
  readonly stdout: string
  readonly stderr: string
  /** Closes its standard input, and resolves with its exit code or the name of the signal that ended it. */
  end(): Promise<number | NodeJS.Signals>
  /** Resolves with its exit code, but does not end it. */
  readonly exited: Promise<number | NodeJS.Signals>
  /** Resolves with the groups of the expression when its standard output matches. */
  says(expected: RegExp): Promise<string[]>
  /** The same for its standard error. */
  reports(expected: RegExp): Promise<string[]>
  signal(signal: NodeJS.Signals): void
  /** Closes our end of its standard output or standard error. */
  stopReading(stream: 'stdout' | 'stderr'): void
}

/** An SQLite file for the locks of one test, and the runs of `holdfast` on it. */
export interface Store extends AsyncDisposable {
  readonly folder: string
  readonly path: string
  /** Starts the program, with this store in `HOLDFAST_URL`. */
  start(args: readonly string[], options?: { env?: Record<string, string | undefined>; stdin?: 'open' | 'closed' }): Run
  /** Runs the program to its end. */
  run(
    args: readonly string[],
    env?: Record<string, string | undefined>,
  ): Promise<{ code: number | NodeJS.Signals } & Pick<Run, 'stdout' | 'stderr'>>
  /** A driver on the same file, to inspect it and to break things. */
  driver(): Promise<Driver>
  /** Resolves when the lock has this many waiters. */
  waiting(lockName: string, count: number): Promise<void>
  lease(lockName: string): Promise<LeaseRecord>
}

export function createStore(): Store {
  if (!existsSync(PROGRAM)) throw new Error(`${PROGRAM} is missing: npm run build`)
  const folder = makeFolder('cli')
  const path = `${folder.path}/locks.db`
  const runs: Run[] = []
  let opened: Promise<Driver> | undefined

  const store: Store = {
    folder: folder.path,
    path,

    start(args, { env = {}, stdin = 'open' } = {}) {
      const run = startProgram(args, { HOLDFAST_URL: `sqlite:${path}`, ...env })
      if (stdin === 'closed') void run.end()
      runs.push(run)
      return run
    },

    async run(args, env = {}) {
      const run = store.start(args, { env, stdin: 'closed' })
      return { code: await run.exited, stdout: run.stdout, stderr: run.stderr }
    },

    driver() {
      opened ??= connect(`sqlite:${path}`)
      return opened
    },

    async waiting(lockName, count) {
      const driver = await store.driver()
      await until(async () => (await driver.inspect({ lockName })).waiters.length === count, {
        timeoutMs: PATIENCE_MS,
        failure: () => `${lockName} never had ${count} waiters`,
      })
    },

    async lease(lockName) {
      const driver = await store.driver()
      const [lease] = (await driver.inspect({ lockName })).leases
      if (lease === undefined) throw new Error(`${lockName} is not held`)
      return lease
    },

    async [Symbol.asyncDispose]() {
      // Only the program itself: it promises to end its command, too.
      for (const run of runs) if (isAlive(run.pid)) run.signal('SIGKILL')
      await Promise.allSettled(runs.map(({ exited }) => exited))
      await (await opened)?.close()
      folder.remove()
    },
  }
  return store
}

/** Resolves when the process has ended. It may be a child of any other process. */
export const gone = (pid: number | string): Promise<void> => waitForExit(Number(pid), PATIENCE_MS)

function startProgram(args: readonly string[], env: Record<string, string | undefined>): Run {
  const child = spawn(process.execPath, [PROGRAM, ...args], {
    // With the test runner's own NODE_OPTIONS, the program would load the runner's hooks.
    env: { ...process.env, NODE_OPTIONS: '', ...env },
    stdio: ['pipe', 'pipe', 'pipe'],
  })
  const { pid } = child
  if (pid === undefined) throw new Error(`could not start ${process.execPath}`)
  const forget = reapProcess(pid)
  let stdout = ''
  let stderr = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text
  })
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text
  })
  child.stdin.on('error', () => {}) // It ended without reading. The test checks its exit code.
  const exited = new Promise<number | NodeJS.Signals>((resolve, reject) => {
    child.once('close', (code, signal) => {
      forget()
      if (signal === null || !CRASHES.has(signal)) resolve(signal ?? code ?? 0)
      else reject(new Error(`${args.join(' ')} crashed (${signal}) and printed:\n${stdout}\n${stderr}`))
    })
  })
  exited.catch(() => {}) // A test that does not wait for the end does not learn of a crash.
  async function printed(expected: RegExp, text: () => string): Promise<string[]> {
    await until(() => expected.test(text()) || child.exitCode !== null, {
      timeoutMs: PATIENCE_MS,
      failure: () => `${args.join(' ')} did not print ${expected}, but:\n${stdout}\n${stderr}`,
    })
    const found = expected.exec(text())
    if (found === null)
      throw new Error(`${args.join(' ')} ended (${child.exitCode}) and printed:\n${stdout}\n${stderr}`)
    return found.slice(1)
  }
  return {
    pid,
    exited,
    get stdout() {
      return stdout
    },
    get stderr() {
      return stderr
    },
    end() {
      child.stdin.end()
      return exited
    },
    says: (expected) => printed(expected, () => stdout),
    reports: (expected) => printed(expected, () => stderr),
    signal: (signal) => process.kill(pid, signal),
    stopReading: (stream) => child[stream].destroy(),
  }
}
