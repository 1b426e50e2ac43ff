import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { connect } from '../../src/connect.ts'
import type { Driver, LeaseRecord } from '../../src/core/driver.ts'
import { makeFolder } from '../harness/folders.ts'
import { isAlive, until, waitForExit } from '../harness/processes.ts'
import { reapProcess } from '../harness/reaper.ts'

/** The built program, as somebody who installed it runs it. */
const PROGRAM = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url))
/** How long something may take that takes a moment, on a machine that is busy. */
const PATIENCE_MS = 30_000

/** For a machine that is busy with other test files too. */
export const SLOW = { timeout: 60_000 }

/** A command that says that it is up, and ends when its standard input does. */
export const UNTIL_CLOSED = ['sh', '-c', 'echo up; read -r line; echo over']

/** One run of `holdfast`. */
export interface Run {
  readonly pid: number
  readonly stdout: string
  readonly stderr: string
  /** Closes its standard input and resolves with the code that it ended with, or the name of the signal. */
  end(): Promise<number | NodeJS.Signals>
  /** Resolves with the code without doing anything for its end. */
  readonly exited: Promise<number | NodeJS.Signals>
  /** Resolves when it has printed something that fits, with the groups of the expression. */
  says(expected: RegExp): Promise<string[]>
  /** The same for its standard error. */
  tells(expected: RegExp): Promise<string[]>
  signal(signal: NodeJS.Signals): void
  /** Nobody reads its standard output any more. */
  deafen(): void
}

/** A place of its own for the locks of one test, and everything that is run on it. */
export interface Store extends AsyncDisposable {
  readonly folder: string
  readonly path: string
  /** Starts the program with this store in `HOLDFAST_URL`. */
  start(args: readonly string[], options?: { env?: Record<string, string | undefined>; stdin?: 'open' | 'closed' }): Run
  /** Runs the program to its end. */
  run(
    args: readonly string[],
    env?: Record<string, string | undefined>,
  ): Promise<{ code: number | NodeJS.Signals } & Pick<Run, 'stdout' | 'stderr'>>
  /** The driver on the same file, to look and to break things. */
  driver(): Promise<Driver>
  /** Resolves when so many wait for the lock. */
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
        failure: () => `there were never ${count} who waited for ${lockName}`,
      })
    },

    async lease(lockName) {
      const driver = await store.driver()
      const [lease] = (await driver.inspect({ lockName })).leases
      if (lease === undefined) throw new Error(`nobody holds ${lockName}`)
      return lease
    },

    async [Symbol.asyncDispose]() {
      // Only the program itself: that its command goes with it is what it promises.
      for (const run of runs) if (isAlive(run.pid)) run.signal('SIGKILL')
      await Promise.all(runs.map(({ exited }) => exited))
      await (await opened)?.close()
      folder.remove()
    },
  }
  return store
}

/** Resolves when a process that a run told of is gone, with whoever started it not asked. */
export const gone = (pid: number | string): Promise<void> => waitForExit(Number(pid), PATIENCE_MS)

function startProgram(args: readonly string[], env: Record<string, string | undefined>): Run {
  const child = spawn(process.execPath, [PROGRAM, ...args], {
    // A test runner's own settings would make the program load the runner's hooks.
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
  child.stdin.on('error', () => {}) // It ended without reading; that is what the test looks at.
  const exited = new Promise<number | NodeJS.Signals>((resolve) => {
    child.once('close', (code, signal) => {
      forget()
      resolve(signal ?? code ?? 0)
    })
  })
  async function heard(expected: RegExp, text: () => string): Promise<string[]> {
    await until(() => expected.test(text()) || child.exitCode !== null, {
      timeoutMs: PATIENCE_MS,
      failure: () => `${args.join(' ')} did not say ${expected}, but:\n${stdout}\n${stderr}`,
    })
    const found = expected.exec(text())
    if (found === null) throw new Error(`${args.join(' ')} ended (${child.exitCode}) and said:\n${stdout}\n${stderr}`)
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
    says: (expected) => heard(expected, () => stdout),
    tells: (expected) => heard(expected, () => stderr),
    signal: (signal) => process.kill(pid, signal),
    deafen: () => child.stdout.destroy(),
  }
}
