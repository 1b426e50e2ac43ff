import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type ShiftedClock, shiftedClock } from '../test/harness/clock-shim.ts'
import { type Folder, makeFolder } from '../test/harness/folders.ts'
import { python } from '../test/harness/python.ts'
import { startWorker, type Worker } from '../test/harness/worker.ts'
import { type ClientHistory, readHistory } from './history.ts'
import type { LoadMeter } from './load.ts'
import type { ClientSettings } from './worker.ts'

export interface ClientPlan {
  settings: Omit<ClientSettings, 'dist' | 'file' | 'ports' | 'seed'>
}

export interface ClientsOptions {
  clients: readonly ClientPlan[]
  dist: string
  /** worker.py, which does the same as worker.ts. */
  pythonWorker: string
  seed: string
  portsOf(client: number): number[]
  meter: LoadMeter
}

/** How long a client process may take to end its tasks after all faults have been healed. */
const STOP_TIMEOUT_MS = 60_000

/** The client processes of an episode. A process that is killed is replaced by another with its own history. */
export class Clients implements AsyncDisposable {
  readonly #options: ClientsOptions
  readonly #folder: Folder
  readonly #clocks: readonly ShiftedClock[]
  readonly #workers: (Worker | undefined)[] = []
  /** Clients under a fault. */
  readonly #busy = new Set<number>()
  /** Clients whose clock is wrong. */
  readonly #stepped = new Set<number>()
  readonly #files: { client: string; file: string }[] = []
  readonly #problems: string[] = []

  private constructor(options: ClientsOptions, folder: Folder, clocks: readonly ShiftedClock[]) {
    this.#options = options
    this.#folder = folder
    this.#clocks = clocks
  }

  static async start(options: ClientsOptions): Promise<Clients> {
    const clocks = await Promise.all(options.clients.map(() => shiftedClock()))
    const clients = new Clients(options, makeFolder('chaos'), clocks)
    try {
      await Promise.all(options.clients.map((_, client) => clients.#start(client)))
    } catch (error) {
      await clients[Symbol.asyncDispose]()
      throw error
    }
    return clients
  }

  /** Pauses a process, and resumes it after `work`. Returns false if it is under another fault. */
  async pause(client: number, work: () => Promise<void>): Promise<boolean> {
    return this.#with(client, async (worker) => {
      await worker.pause()
      await work()
      worker.resume()
    })
  }

  /** Kills a process with SIGKILL, and starts a new one after `work`. */
  async kill(client: number, work: () => Promise<void>): Promise<boolean> {
    return this.#with(client, async (worker) => {
      this.#workers[client] = undefined
      this.#options.meter.add('clients', worker.pid)
      await worker.kill()
      await work()
      await this.#start(client)
    })
  }

  async block(client: number, forMs: number): Promise<boolean> {
    return this.#with(client, async (worker) => {
      await worker.call('block', forMs)
    })
  }

  /** Runs `work` while the client is under no other fault. Returns false if it is. */
  alone(client: number, work: () => Promise<void>): Promise<boolean> {
    return this.#with(client, work)
  }

  /** Steps the wall clocks of these clients, and steps them back after `work`. */
  async stepClocks(clients: readonly number[], byMs: number, work: () => Promise<void>): Promise<boolean> {
    const shift = (offsetMs: number): void => {
      for (const client of clients) this.#clocks[client]?.shift(offsetMs)
    }
    if (clients.some((client) => this.#stepped.has(client))) return false
    for (const client of clients) this.#stepped.add(client)
    shift(byMs)
    await work()
    shift(0)
    for (const client of clients) this.#stepped.delete(client)
    return true
  }

  /** Ends all tasks. The clients can still be called. */
  async quiet(): Promise<void> {
    await this.callAll('quiet')
  }

  /** Calls a function of each client, and returns the results in their order. */
  callAll(name: string, ...args: unknown[]): Promise<unknown[]> {
    return Promise.all(this.#workers.map((worker) => worker?.call(name, ...args)))
  }

  /** Calls a function of one client. */
  call(client: number, name: string, ...args: unknown[]): Promise<unknown> {
    const worker = this.#workers[client]
    if (worker === undefined) throw new Error(`client ${client} has ended`)
    return worker.call(name, ...args)
  }

  /** Ends all tasks, and reads the histories of all processes. */
  async stop(): Promise<{ histories: ClientHistory[]; problems: string[] }> {
    await Promise.all(
      this.#workers.map(async (worker, client) => {
        try {
          await worker?.call('stop')
        } catch (error) {
          this.#problems.push(`client ${client} did not stop: ${(error as Error).message}`)
        }
        if (worker !== undefined) this.#options.meter.add('clients', worker.pid)
        this.#workers[client] = undefined
        await worker?.kill()
      }),
    )
    const histories = this.#files.map(({ client, file }) => readHistory(file, client))
    return { histories, problems: this.#problems }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#workers.map((worker) => worker?.kill()))
    for (const clock of this.#clocks) clock[Symbol.dispose]()
    this.#folder.remove()
  }

  async #start(client: number): Promise<void> {
    const { clients, dist, pythonWorker, seed, portsOf } = this.#options
    const plan = clients[client]
    if (plan === undefined) throw new RangeError(`there is no client ${client}`)
    const name = `${client}-${this.#files.filter((each) => each.client.startsWith(`${client}-`)).length + 1}`
    const file = join(this.#folder.path, name)
    const worker = await startWorker(
      plan.settings.language === 'python'
        ? { command: [python, pythonWorker] }
        : { module: fileURLToPath(new URL('./worker.js', import.meta.url)) },
      { env: this.#clocks[client]?.env ?? {}, callTimeoutMs: STOP_TIMEOUT_MS },
    )
    this.#files.push({ client: name, file })
    this.#workers[client] = worker
    worker.exited.then(({ code, signal }) => {
      if (this.#workers[client] !== worker) return
      const how = signal ?? `exit code ${code}`
      this.#problems.push(`client ${client} ended by itself (${how}); it printed:\n${worker.stderr.slice(-4_000)}`)
      this.#workers[client] = undefined
    })
    const settings: ClientSettings = { ...plan.settings, dist, file, ports: portsOf(client), seed: `${seed}/${name}` }
    await worker.call('start', settings)
  }

  async #with(client: number, work: (worker: Worker) => Promise<void>): Promise<boolean> {
    const worker = this.#workers[client]
    if (worker === undefined || this.#busy.has(client)) return false
    this.#busy.add(client)
    try {
      await work(worker)
      return true
    } finally {
      this.#busy.delete(client)
    }
  }
}
