import { type SeededRandom, seededRandom } from '../../src/testing/virtual-clock.ts'

/** Tasks that run at the same time, over three instances, three lock names and three variables for leases. */
export interface Program {
  readonly seed: number
  /** The longest time that a message to or from the store takes. 0: the store answers in the same step. */
  readonly latencyMs: number
  /** Whether the store can grant all names of `withLocks` in one step. */
  readonly groups: boolean
  /** The option of each instance. */
  readonly reacquire: readonly Reacquire[]
  readonly tasks: readonly (readonly Step[])[]
}

export type Reacquire = 'refuse' | 'extend'

/** One call. Every step has all fields, so that a step can be simplified field by field. `call` says which count. */
export interface Step {
  readonly call: Call
  /** Which instance makes the call. */
  readonly on: number
  readonly share: Share
  /** `withLocks` uses all of them, all other calls the first. */
  readonly names: readonly string[]
  /** The variable that gets or has the lease. All tasks share the variables. */
  readonly slot: number
  readonly seconds: number
  readonly options: Options
  /** How the code under the lease learns that it must stop: it reads `held`, or it watches `signal`. */
  readonly watches: 'held' | 'signal'
  readonly awaited: boolean
  /** What the function does that is passed to the call. */
  readonly body: readonly Step[]
}

/** 0 or undefined: the option is not set. */
export interface Options {
  readonly timeoutSeconds: number
  readonly blockingTimeoutSeconds: number
  readonly heartbeat: boolean | undefined
  readonly minHoldSeconds: number
  readonly maxHoldSeconds: number
  /** The `signal` of the call aborts after this time. */
  readonly abortAfterSeconds: number
  readonly permits: number
}

/** Which primitive makes the claim, and which part of the lock it wants. */
export type Share = 'lock' | 'read' | 'write' | 'permits'

/** `with`: withLock, withRead, withWrite or withPermits. `using`: a block with `await using lease = await hold()`. */
export type Call =
  | 'sleep'
  | 'acquire'
  | 'hold'
  | 'using'
  | 'with'
  | 'withLocks'
  | 'release'
  | 'dispose'
  | 'releaseName'
  | 'extend'
  | 'extendName'
  | 'serialize'
  | 'restore'
  | 'forceRelease'
  | 'releaseAll'
  | 'close'
  | 'once'
  | 'campaign'
  | 'lead'
  | 'consume'
  | 'throw'

export const NAMES = ['a', 'b', 'c'] as const
export const INSTANCES = 3
export const SLOTS = 3
export const PERMITS = 2
export const LIMIT = { limit: 4, periodSeconds: 1, burst: 4 }
/** How long the result of a once-only job is kept. */
export const ONCE_SECONDS = 3

/** How often each call is generated. Calls that share a lease or end it are frequent, because they meet. */
const WEIGHTS: Readonly<Record<Call, number>> = {
  sleep: 9,
  acquire: 4,
  hold: 3,
  using: 3,
  with: 11,
  withLocks: 4,
  release: 5,
  dispose: 1,
  releaseName: 3,
  extend: 2,
  extendName: 2,
  serialize: 2,
  restore: 1,
  forceRelease: 2,
  releaseAll: 1,
  close: 1,
  once: 1,
  campaign: 1,
  lead: 0.5,
  consume: 0.5,
  throw: 0.5,
}

/** Every call of the public API that programs make. */
export const CALLS = (Object.keys(WEIGHTS) as Call[]).filter((call) => call !== 'sleep' && call !== 'throw')

const HAS_BODY: ReadonlySet<Call> = new Set<Call>(['using', 'with', 'withLocks', 'once', 'lead'])
/** The part of each task and body that comes first: without a lease there is little to do. */
const TAKES = ['acquire', 'hold', 'using', 'with', 'with', 'with', 'withLocks'] as const

/** Times of a program. On a real server they pass as slowly as they say. */
export interface Pace {
  readonly sleeps: List<number>
  readonly ttls: List<number>
  readonly waits: List<number>
  readonly extensions: List<number>
  readonly minHolds: List<number>
  readonly maxSteps: number
}

export const VIRTUAL: Pace = {
  sleeps: [0, 0.005, 0.02, 0.1, 0.1, 0.3, 1, 3],
  ttls: [0.1, 0.5, 2, 10, 10],
  waits: [0, 0, 0, 0.05, 0.5, 3],
  extensions: [0.15, 0.7, 4, 45],
  minHolds: [0.6, 3],
  maxSteps: 24,
}

export const REAL: Pace = {
  sleeps: [0, 0.005, 0.02, 0.1, 0.3],
  ttls: [1.5, 3, 10],
  waits: [0, 0, 0.3, 1],
  extensions: [1.2, 2.5, 12],
  minHolds: [0.4],
  maxSteps: 16,
}

type List<T> = readonly [T, ...T[]]

/** The program of a seed. */
export function programFrom(seed: number, pace: Pace = VIRTUAL): Program {
  const random = seededRandom(seed)
  const latencyMs = random.pick([0, 0, 4, 30])
  const reacquire = Array.from({ length: INSTANCES }, () => random.pick<Reacquire>(['refuse', 'extend']))
  const writer = new Writer(random, pace)
  const tasks = Array.from({ length: random.whole(2, 4) }, () => writer.steps(0, 4))
  return { seed, latencyMs, groups: random.chance(0.7), reacquire, tasks }
}

class Writer {
  readonly #random: SeededRandom
  readonly #pace: Pace
  #left: number

  constructor(random: SeededRandom, pace: Pace) {
    this.#random = random
    this.#pace = pace
    this.#left = pace.maxSteps
  }

  steps(depth: number, most: number): Step[] {
    const random = this.#random
    const steps: Step[] = []
    if (random.chance(0.5)) steps.push(this.#step('sleep', depth))
    if (depth === 0 || random.chance(0.4)) steps.push(this.#step(random.pick(TAKES), depth))
    for (let count = random.whole(0, most); count > 0 && this.#left > 0; count -= 1) {
      const call = this.#call()
      steps.push(...(call === 'serialize' ? this.#handOver(depth) : [this.#step(call, depth)]))
    }
    return steps
  }

  /** Only a lease without a function can be handed over, and it is lost soon unless another step restores it. */
  #handOver(depth: number): Step[] {
    const random = this.#random
    const serialize = this.#step('serialize', depth)
    const take = { ...this.#step(random.pick(['acquire', 'hold']), depth), share: 'lock', awaited: true } as const
    return [
      ...(random.chance(0.6) ? [{ ...take, slot: serialize.slot }] : []),
      serialize,
      ...(random.chance(0.7) ? [this.#step('restore', depth)] : []),
    ]
  }

  #call(): Call {
    const calls = Object.entries(WEIGHTS) as [Call, number][]
    let at = this.#random.fraction() * calls.reduce((sum, [, weight]) => sum + weight, 0)
    for (const [call, weight] of calls) {
      at -= weight
      if (at < 0) return call
    }
    return 'sleep'
  }

  #step(call: Call, depth: number): Step {
    const random = this.#random
    this.#left -= 1
    const awaits = call === 'sleep' || call === 'throw' || random.chance(HAS_BODY.has(call) ? 0.6 : 0.85)
    return {
      call,
      on: random.pick([0, 0, 0, 1, 1, 2]),
      share: random.pick<Share>(['lock', 'lock', 'lock', 'lock', 'lock', 'read', 'write', 'permits']),
      names: this.#names(),
      slot: random.whole(0, SLOTS - 1),
      seconds: random.pick(call.startsWith('extend') ? this.#pace.extensions : this.#pace.sleeps),
      options: this.#options(),
      watches: random.pick(['held', 'signal']),
      awaited: awaits,
      body: HAS_BODY.has(call) && depth < 3 ? this.steps(depth + 1, 3) : [],
    }
  }

  #names(): readonly string[] {
    const first = this.#random.pick(['a', 'a', 'a', 'a', 'b', 'b', 'c'])
    const rest = NAMES.filter((name) => name !== first && this.#random.chance(0.4))
    return this.#random.chance(0.5) ? [first, ...rest] : [...rest, first]
  }

  #options(): Options {
    const random = this.#random
    const sometimes = (probability: number, list: List<number>): number =>
      random.chance(probability) ? random.pick(list) : 0
    return {
      timeoutSeconds: random.pick(this.#pace.ttls),
      blockingTimeoutSeconds: random.pick(this.#pace.waits),
      heartbeat: random.chance(0.2) ? random.chance(0.5) : undefined,
      minHoldSeconds: sometimes(0.08, this.#pace.minHolds),
      maxHoldSeconds: sometimes(0.08, [0.3, 1.5]),
      abortAfterSeconds: sometimes(0.08, [0.005, 0.2]),
      permits: random.pick([1, 1, 1, 2]),
    }
  }
}

/** All steps of the program, bodies included. */
export function stepsOf({ tasks }: Program): Step[] {
  const all = (steps: readonly Step[]): Step[] => steps.flatMap((step) => [step, ...all(step.body)])
  return tasks.flatMap(all)
}
