import type { Draw } from '../draw.ts'
import type { ServerPorts } from '../wire/grounds.ts'
import type { Library } from '../wire/library.ts'
import type { Judge } from './judge.ts'

/** A kind of external input. */
export interface Target {
  readonly name: string
  /** How many cases run at the same time. Most of them wait for a deadline. */
  readonly jobs: number
  open(ground: Ground): Promise<Stage>
}

/** What a run has: the package under test, and servers that already run. */
export interface Ground {
  readonly library: Library
  /** The folder of the build. */
  readonly dist: string
  readonly servers: ServerPorts
  /** Where programs and packages are found. */
  readonly root: string
}

/** The servers and clients of a target. Every case on it begins with a name of its own. */
export interface Stage extends AsyncDisposable {
  /** Runs one case. `draw` decides everything in it, and `judge` sees everything that it does. */
  run(draw: Draw, judge: Judge): Promise<void>
}
