import type { Options, Program, Step } from './program.ts'

/** Programs that are simpler than this one by one change, the greatest changes first. */
export function* simplerPrograms(program: Program): Generator<Program> {
  const { tasks } = program
  for (const simpler of without(tasks)) yield { ...program, tasks: simpler }
  for (const simpler of eachOf(tasks, simplerSteps)) yield { ...program, tasks: simpler }
  if (program.latencyMs > 0) yield { ...program, latencyMs: 0 }
  if (!program.groups) yield { ...program, groups: true }
  for (const simpler of eachOf(program.reacquire, (mode) => (mode === 'extend' ? (['refuse'] as const) : []))) {
    yield { ...program, reacquire: simpler }
  }
}

function* simplerSteps(steps: readonly Step[]): Generator<readonly Step[]> {
  if (steps.length > 2) {
    const half = steps.length >> 1
    yield steps.slice(0, half)
    yield steps.slice(half)
  }
  yield* without(steps)
  // A call with a function: only what the function does.
  for (const [at, { body }] of steps.entries()) {
    if (body.length > 0) yield [...steps.slice(0, at), ...body, ...steps.slice(at + 1)]
  }
  yield* eachOf(steps, simplerStep)
}

function* simplerStep(step: Step): Generator<Step> {
  for (const body of simplerSteps(step.body)) yield { ...step, body }
  if (!step.awaited) yield { ...step, awaited: true }
  for (const names of without(step.names)) if (names.length > 0) yield { ...step, names }
  for (const names of eachOf(step.names, (name) => (name === 'b' ? ['a'] : name === 'c' ? ['a', 'b'] : []))) {
    if (new Set(names).size === names.length) yield { ...step, names }
  }
  for (let on = 0; on < step.on; on += 1) yield { ...step, on }
  for (let slot = 0; slot < step.slot; slot += 1) yield { ...step, slot }
  if (step.share !== 'lock') yield { ...step, share: 'lock' }
  if (step.watches !== 'held') yield { ...step, watches: 'held' }
  for (const seconds of ROUND) {
    if (seconds === 0 && step.call.startsWith('extend')) continue
    if (simplicity(seconds) < simplicity(step.seconds)) yield { ...step, seconds }
  }
  for (const options of simplerOptions(step.options)) yield { ...step, options }
}

function* simplerOptions(options: Options): Generator<Options> {
  for (const [name, value] of Object.entries(SIMPLEST) as [keyof Options, Options[keyof Options]][]) {
    if (options[name] !== value) yield { ...options, [name]: value }
  }
  for (const name of ['blockingTimeoutSeconds', 'timeoutSeconds'] as const) {
    if (options[name] !== 0 && options[name] !== 1) yield { ...options, [name]: 1 }
  }
}

const SIMPLEST: Options = {
  timeoutSeconds: 0,
  blockingTimeoutSeconds: 0,
  heartbeat: undefined,
  minHoldSeconds: 0,
  maxHoldSeconds: 0,
  abortAfterSeconds: 0,
  permits: 1,
}

/** The times that a shrunken program has if they do. */
const ROUND = [0, 1, 2, 3, 0.1]
const simplicity = (seconds: number): number => (ROUND.includes(seconds) ? ROUND.indexOf(seconds) : ROUND.length)

function* without<T>(list: readonly T[]): Generator<readonly T[]> {
  for (const at of list.keys()) yield [...list.slice(0, at), ...list.slice(at + 1)]
}

function* eachOf<T>(list: readonly T[], simpler: (each: T) => Iterable<T>): Generator<readonly T[]> {
  for (const [at, each] of list.entries()) {
    for (const other of simpler(each)) yield [...list.slice(0, at), other, ...list.slice(at + 1)]
  }
}

/** The simplest program that still fails. */
export async function shrink(program: Program, fails: (program: Program) => Promise<boolean>): Promise<Program> {
  for (const simpler of simplerPrograms(program)) if (await fails(simpler)) return shrink(simpler, fails)
  return program
}
