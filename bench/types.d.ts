/** What the programs of this folder hand to each other. */

/** A `variant` is Holdfast with other options. */
export type Kind = 'holdfast' | 'variant' | 'other build' | 'floor' | 'peer'

export type DriverName = 'redis' | 'node-redis' | 'postgres' | 'advisory' | 'sqlite' | 'memory' | 'redlock'

/** `hold` has one waiter in a process, `wait` many. */
export type Ability = 'pair' | 'hold' | 'wait' | 'keep' | 'consume'

/** One library on one store. It is measured in a process of its own. */
export interface Entry {
  readonly title: string
  readonly kind: Kind
  readonly driver: DriverName
  /** A file of `contestants/`. */
  readonly module: string
  readonly does: readonly Ability[]
  /** The library fails with more calls at once. */
  readonly maxAtOnce?: number
  /** Not in a quick run. */
  readonly slow?: boolean
  /** `relaxed` durability, a rate limiter with a local share, or with telemetry that listens. */
  readonly variant?: 'relaxed' | 'local share' | 'prometheus' | 'opentelemetry'
  /** The built package. By default that of this repository. */
  readonly dist?: string
}

/** Where the servers of a run are. */
export interface Stores {
  readonly redis: string
  readonly postgres: string
  readonly redlock: readonly string[]
  /** For files. */
  readonly folder: string
}

export interface OpenOptions {
  readonly driver: DriverName
  readonly stores: Stores
  readonly dist: string
  readonly variant?: Entry['variant']
}

/** What a file of `contestants/` opens. It has the methods of its entry's `does`. */
export interface Contestant {
  /** Acquires and releases a free lock. */
  pair?(name: string): Promise<unknown>
  /** Called once for a name, in one process, before any `hold`. */
  prime?(name: string): Promise<unknown>
  /** Waits for the lock. Resolves with its release. Rejects if the library gives up. */
  hold?(name: string): Promise<() => Promise<unknown> | unknown>
  /** Holds a free lock and renews it. Resolves with its release. */
  keep?(name: string, ttlMs: number, onLost: () => void): Promise<() => Promise<unknown>>
  consume?(key: string): Promise<unknown>
  /** Writes leases of an hour into the store without holding them here. */
  fill?(names: readonly string[]): Promise<unknown>
  close(): Promise<unknown>
}

/** The figures of one contestant in one slice, by column. */
export type Figures = Record<string, number>

export interface Column {
  readonly key: string
  readonly title: string
  readonly digits: number
}

export interface Row {
  readonly title: string
  readonly kind: Kind
  /** In the order of the rounds. */
  readonly rounds: readonly Figures[]
}

export type Regime = 'short' | 'steady'

export interface Table {
  /** `scenario/driver/case`, such as `acquire/redis/64`. */
  readonly id: string
  readonly title: string
  readonly regime: Regime | undefined
  readonly columns: readonly Column[]
  /** The column that is compared, and which direction is better. */
  readonly main: { readonly key: string; readonly better: 'more' | 'less' }
  readonly rows: readonly Row[]
}

/** How a cost grows: one line of points for each subject. */
export interface Plot {
  readonly id: string
  readonly title: string
  readonly x: string
  readonly y: string
  readonly lines: readonly { readonly title: string; readonly points: readonly (readonly [number, number])[] }[]
}

export interface Target {
  readonly title: string
  readonly table: string
  readonly column: string
  /** The figure is divided by that of the floor in the same round. Otherwise it counts as it is. */
  readonly toFloor?: boolean
  readonly atMost?: number
  readonly atLeast?: number
  readonly unit?: string
  /** What was measured before the work on speed, and the best peer then. */
  readonly before: string
  readonly peerBefore: string
}

export interface Scenario {
  readonly id: string
  readonly title: string
  readonly drivers: readonly DriverName[]
  /** Those of a quick run that names none. */
  readonly quickDrivers?: readonly DriverName[]
  run(stage: Stage): Promise<void>
}

export interface Settings {
  readonly quick: boolean
  readonly regimes: readonly Regime[]
  readonly drivers: readonly DriverName[] | undefined
  /** Another build, measured in the same rounds. */
  readonly otherDist: string | undefined
  readonly rounds: number | undefined
  readonly fsync: boolean
}

/** The length of slices and the number of rounds in a regime. */
export interface Pace {
  readonly regime: Regime
  readonly warmUpMs: number
  readonly sliceMs: number
  readonly rounds: number
}

/** A contestant in its process, or in several. */
export interface Player extends AsyncDisposable {
  readonly entry: Entry
  readonly processes: number
  /** Calls a function of the scenario's `work` in one process, by default in the first. */
  call<T = Figures>(name: string, args?: unknown, at?: number): Promise<T>
  /** Calls it in all processes at the same time. */
  callAll<T = Figures>(name: string, args?: unknown): Promise<T[]>
}

export interface EnterOptions {
  readonly does: Ability
  readonly driver: DriverName
  /** The file whose `work` the processes run. */
  readonly scenario: string
  readonly processes?: number
  readonly nodeOptions?: readonly string[]
  /** Other servers than those of the stage. */
  readonly stores?: Partial<Stores>
  readonly only?: ((entry: Entry) => boolean) | undefined
}

export interface Stage {
  readonly settings: Settings
  /** The scenario's drivers that were asked for. */
  drivers(scenario: Scenario): DriverName[]
  paces(): Pace[]
  /** What was asked for, or else these. */
  rounds(usual: { readonly quick: number; readonly full: number }): number
  stores(driver: DriverName): Promise<Stores>
  /** Every contestant that can do it, each in its own process. */
  enter(options: EnterOptions): Promise<Player[]>
  /** CPU time of the server so far, in microseconds. 0 without a server. */
  serverCpu(driver: DriverName): number
  /** Transactions of PostgreSQL so far. */
  transactions(): Promise<number>
  /** How many clients the server of a driver has. */
  connections(driver: DriverName): Promise<number>
  startRedis(count: number): Promise<readonly HarnessServer[]>
  addTable(table: Table): void
  addPlot(plot: Plot): void
}

/** The part of the test harness's server that is used here. */
export interface HarnessServer extends AsyncDisposable {
  readonly url: string
  readonly port: number
  readonly pid: number
  kill(): Promise<void>
  pause(): Promise<void>
  resume(): void
}
