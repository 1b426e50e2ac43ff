import { spawn } from 'node:child_process'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { isAlive, killProcess, pauseProcess, resumeProcess } from './processes.ts'
import { reapProcess } from './reaper.ts'

/** Another process whose functions a test calls: "in process A, hold this lock". */
export interface Worker extends AsyncDisposable {
  readonly pid: number
  /**
   * Calls a function of the worker with JSON arguments, and returns its JSON result. Rejects with the worker's error
   * (its name, message and code), if the worker ends first, and if no answer comes in time.
   */
  call(name: string, ...args: unknown[]): Promise<unknown>
  /** Everything printed so far. */
  readonly stdout: string
  readonly stderr: string
  /** Resolves when it has ended, in any way. */
  readonly exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>
  kill(): Promise<void>
  pause(): Promise<void>
  resume(): void
}

export interface WorkerOptions {
  /**
   * Where bare imports of inline source are resolved.
   *
   * @default the repository, so that `holdfast` is the built package
   */
  cwd?: string
  env?: Record<string, string>
  callTimeoutMs?: number
}

/**
 * Starts a worker from a module, whose exported functions can be called, or from inline source, which passes its
 * functions to `expose`: `import { DistributedLock } from 'holdfast'; expose({ async hold(name) { … } })`.
 * A program of another language speaks Node's own protocol: JSON in lines, on the socket `NODE_CHANNEL_FD`.
 * Use it as `await using worker = await startWorker(…)`: it ends with the test, and with the runner at the latest.
 */
export async function startWorker(
  program: { module: string } | { source: string } | { command: readonly [string, ...string[]] },
  { cwd = REPOSITORY, env = {}, callTimeoutMs = 10_000 }: WorkerOptions = {},
): Promise<Worker> {
  const [file, ...args] = 'command' in program ? program.command : commandOf(program)
  const child = spawn(file, args, {
    cwd,
    // With the test runner's own NODE_OPTIONS, the worker would load the runner's hooks.
    env: { ...process.env, NODE_OPTIONS: '', ...env },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    detached: true,
  })
  const pid = child.pid
  if (pid === undefined) throw new Error(`could not start ${file}`)
  const forget = reapProcess(pid)

  let stdout = ''
  let stderr = ''
  child.stdout?.setEncoding('utf8').on('data', (text: string) => {
    stdout += text
  })
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    stderr += text
  })

  const pending = new Map<number, (reply: Reply) => void>()
  let lastCall = 0
  const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve) => {
    child.once('close', (code, signal) => {
      forget()
      const message = `the worker ended (${signal ?? `exit code ${code}`}) before it answered; it printed:\n${stderr}`
      for (const settle of pending.values()) settle({ error: { name: 'Error', message } })
      resolve({ code, signal })
    })
  })
  child.on('message', ({ id, ...reply }: Reply & { id: number }) => pending.get(id)?.(reply))

  const call = (name: string, ...callArgs: unknown[]) =>
    new Promise<unknown>((resolve, reject) => {
      const id = ++lastCall
      const settle = (reply: Reply) => {
        clearTimeout(deadline)
        pending.delete(id)
        if ('error' in reply) reject(Object.assign(new Error(reply.error.message), reply.error))
        else resolve(reply.result)
      }
      const fail = (message: string) => settle({ error: { name: 'Error', message: `${name}: ${message}` } })
      const deadline = setTimeout(() => fail(`the worker gave no answer in ${callTimeoutMs} ms`), callTimeoutMs)
      pending.set(id, settle)
      if (!child.connected) return fail(`the worker has ended; it printed:\n${stderr}`)
      child.send({ id, name, args: callArgs }, (error) => error && fail(error.message))
    })

  const kill = async () => {
    if (child.exitCode === null && child.signalCode === null && isAlive(pid)) await killProcess(pid)
    await exited
  }
  // The first answer shows that the source was loaded. A syntax error in it fails here, and not at the first call.
  await call(READY).catch(async (error) => {
    await kill()
    throw error
  })
  return {
    pid,
    call,
    get stdout() {
      return stdout
    },
    get stderr() {
      return stderr
    },
    exited,
    kill,
    pause: () => pauseProcess(pid),
    resume: () => resumeProcess(pid),
    [Symbol.asyncDispose]: kill,
  }
}

function commandOf(program: { module: string } | { source: string }): [string, ...string[]] {
  const source =
    'source' in program
      ? program.source
      : `import * as exported from ${JSON.stringify(pathToFileURL(program.module).href)}; expose(exported)`
  const boot = new URL('./worker-boot.mjs', import.meta.url).href
  return [process.execPath, '--import', boot, '--input-type=module', '--eval', source]
}

type Reply = { result?: unknown } | { error: { name: string; message: string; code?: string } }

/** worker-boot.mjs has the same literal. */
const READY = 'holdfast:ready'
const REPOSITORY = fileURLToPath(new URL('../..', import.meta.url))
