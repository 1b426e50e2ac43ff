import { join } from 'node:path'
import { type Folder, makeFolder } from '../../test/harness/folders.ts'
import { startWorker, type Worker } from '../../test/harness/worker.ts'
import type { Fault } from '../faults.ts'
import { Links } from '../links.ts'
import type { LoadMeter } from '../load.ts'
import { Losses, SETTLE_MS } from '../losses.ts'
import { ms, processRecipes, type Recipe, range, stepMs } from '../plan.ts'
import { type Scenario, type Stage, Turns } from '../stage.ts'
import { drawSetting } from './setting.ts'

/** A file that all processes of a machine share. It has no connections, and the machine's clock decides. */
export const sqlite: Scenario = {
  hasQueue: true,
  isMixable: true,
  hasClientClock: true,
  get faultNames() {
    return recipesOf(1).map(({ name }) => name)
  },
  drawSetting: (draw, options) => drawSetting(draw, options, { driver: 'sqlite', servers: 0, node: [['url', 1]] }),
  recipes: ({ clients }) => recipesOf(clients.length),
  open: (_, { meter }) => SqliteStage.open(meter),
}

/** Each process has locks of its own, so they exclude nothing across processes: a run with it must fail. */
export const memory: Scenario = {
  ...sqlite,
  hasQueue: false,
  isMixable: false,
  get faultNames() {
    return processRecipes(1).map(({ name }) => name)
  },
  drawSetting: (draw, options) => drawSetting(draw, options, { driver: 'memory', servers: 0, node: [['url', 1]] }),
  recipes: ({ clients }) => processRecipes(clients.length),
}

function recipesOf(clients: number): Recipe[] {
  return [
    ...processRecipes(clients),
    {
      name: 'client-clock-stepped',
      weight: 1,
      draw: (draw) => [
        { kind: 'client-clock-stepped', clients: range(clients), byMs: stepMs(draw), forMs: ms(draw, 300, 3_000) },
      ],
      aloneForMs: ([fault]) => (fault !== undefined && 'byMs' in fault ? Math.abs(fault.byMs) : 0) + SETTLE_MS,
    },
    {
      name: 'clock-back-and-forth',
      weight: 2,
      draw: (draw) => {
        let afterMs = 0
        return range(draw.whole(2, 4)).map(() => {
          const forMs = ms(draw, 50, 1_500)
          const step = { byMs: -ms(draw, 500, draw.one([2_000, 6_000])), forMs, afterMs }
          afterMs += forMs + ms(draw, 100, 500)
          return { kind: 'client-clock-stepped', clients: range(clients), ...step }
        })
      },
      aloneForMs: (faults) => Math.max(...faults.map((each) => ('byMs' in each ? -each.byMs : 0))) + SETTLE_MS,
    },
    {
      name: 'file-locked',
      weight: 3,
      draw: (draw) => [
        { kind: 'file-locked', by: draw.one(['IMMEDIATE', 'EXCLUSIVE'] as const), forMs: ms(draw, 50, 2_500) },
      ],
    },
    { name: 'checkpointed', weight: 2, draw: () => [{ kind: 'checkpointed' }] },
    { name: 'rows-deleted', weight: 1, draw: () => [{ kind: 'rows-deleted' }], aloneForMs: () => SETTLE_MS },
  ]
}

/** Another program that opens the file, as a backup or a curious administrator does. */
const OTHER_PROGRAM = `
  import { createRequire, isBuiltin } from 'node:module'
  const load = createRequire(process.cwd() + '/')
  const Database = isBuiltin('node:sqlite') ? load('node:sqlite').DatabaseSync : load('libsql')
  const using = async (path, work) => {
    const database = new Database(path)
    try {
      database.exec('PRAGMA busy_timeout = 10000')
      await work(database)
    } finally {
      database.close()
    }
  }
  expose({
    hold: (path, mode, forMs) => using(path, async (database) => {
      database.exec('BEGIN ' + mode)
      await new Promise((resolve) => setTimeout(resolve, forMs))
      database.exec('COMMIT')
    }),
    run: (path, sql) => using(path, async (database) => database.exec(sql)),
  })
`

class SqliteStage implements Stage {
  readonly #losses = new Losses()
  readonly links: Links
  readonly #folder: Folder
  /** SQLite blocks the process that waits for a file. So the program that holds the file does nothing else. */
  readonly #holder: Worker
  readonly #other: Worker
  readonly #holds = new Turns()
  readonly #meter: LoadMeter

  private constructor(links: Links, [holder, other]: readonly [Worker, Worker], meter: LoadMeter) {
    this.links = links
    this.#holder = holder
    this.#other = other
    this.#meter = meter
    this.#folder = makeFolder('chaos-sqlite')
  }

  static async open(meter: LoadMeter): Promise<SqliteStage> {
    const program = { source: OTHER_PROGRAM }
    const workers = await Promise.all([startWorker(program), startWorker(program)])
    return new SqliteStage(await Links.open(0, []), workers, meter)
  }

  get losses() {
    return this.#losses.all
  }

  get url() {
    return `sqlite:${this.#path}`
  }

  get clientSettings() {
    return { path: this.#path }
  }

  async apply(fault: Fault, signal: AbortSignal): Promise<boolean> {
    switch (fault.kind) {
      case 'file-locked':
        return this.#holds.take(signal, () => this.#isDone(this.#holder, 'hold', fault.by, fault.forMs))
      case 'checkpointed':
        return this.#isDone(this.#other, 'run', 'PRAGMA wal_checkpoint(TRUNCATE)')
      case 'rows-deleted':
        return this.#losses.alone(SETTLE_MS, () =>
          this.#losses.losing({}, () => this.#isDone(this.#other, 'run', 'DELETE FROM holdfast_leases')),
        )
      default:
        throw new Error(`sqlite has no fault ${fault.kind}`)
    }
  }

  async version(): Promise<string> {
    return `sqlite of node ${process.versions.node}`
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const worker of [this.#holder, this.#other]) {
      this.#meter.add('servers', worker.pid)
      await worker.kill()
    }
    await this.links[Symbol.asyncDispose]()
    this.#folder.remove()
  }

  /** The file may be locked by a client that is paused in a transaction. */
  async #isDone(worker: Worker, name: string, ...args: unknown[]): Promise<boolean> {
    return worker.call(name, this.#path, ...args).then(
      () => true,
      () => false,
    )
  }

  get #path(): string {
    return join(this.#folder.path, 'locks.db')
  }
}
