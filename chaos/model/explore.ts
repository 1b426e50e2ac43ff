import type { Bounds } from './bounds.ts'
import { NODES } from './bounds.ts'
import { isStuck } from './liveness.ts'
import type { Rules } from './rules.ts'
import { StateTable } from './table.ts'
import { canonical, type Visit, WIDTH, type World, worldOf } from './world.ts'

export interface Exploration {
  readonly states: number
  /** Steps that were tried, also those that led to a known state. */
  readonly steps: number
  /** The length of the longest shortest way to a state. */
  readonly depth: number
  readonly grants: number
  readonly seconds: number
  /** False if it stopped at `mostStates`. */
  readonly isComplete: boolean
  readonly violation: Violation | undefined
}

export interface Violation {
  readonly rule: string
  /** The shortest way to it: a sentence for each step. */
  readonly steps: readonly string[]
}

export interface ExploreOptions {
  readonly bounds: Bounds
  readonly rules: Rules
  readonly quorum?: number
  readonly mostStates?: number
  readonly progress?: (states: number, depth: number) => void
}

/** Breadth first, so that the first violation found is one with the fewest steps. */
export function explore(options: ExploreOptions): Exploration {
  const { bounds, rules, quorum = Math.floor(NODES / 2) + 1, mostStates = Number.POSITIVE_INFINITY } = options
  const startMs = performance.now()
  const world = worldOf(bounds, rules, quorum)
  const stuck = isStuck(world, bounds, rules, quorum)
  const table = new StateTable(WIDTH)
  const scratch = new Int32Array(WIDTH)
  let [steps, depth, levelEnd, grants] = [0, 0, 1, 0]
  let parent = -1
  const visit: Visit = (next) => {
    steps += 1
    scratch.set(next)
    table.add(canonical(scratch), parent)
  }
  scratch.set(world.first)
  table.add(canonical(scratch), -1)
  let violation: Violation | undefined
  let index = 0
  for (; index < table.size && violation === undefined && table.size < mostStates; index += 1) {
    if (index === levelEnd) {
      depth += 1
      levelEnd = table.size
      options.progress?.(table.size, depth)
    }
    const state = table.at(index)
    const { fault, largest } = world.common(state)
    if (largest > 0) grants += 1
    const rule = fault ?? stuck(state)
    if (rule !== undefined) violation = { rule, steps: wayTo(world, table.pathTo(index)) }
    parent = index
    world.forEachNext(state, visit)
  }
  const seconds = (performance.now() - startMs) / 1_000
  const isComplete = index === table.size && violation === undefined
  return { states: table.size, steps, depth, grants, seconds, isComplete, violation }
}

/** Takes the steps again, without interchanging nodes, so that a node has the same name in all of them. */
function wayTo(world: World, path: readonly Int32Array[]): string[] {
  const labels: string[] = []
  let state: Int32Array = world.first.slice()
  for (const target of path.slice(1)) {
    let found: { state: Int32Array; label: string } | undefined
    world.forEachNext(state, (next, label) => {
      if (found !== undefined || !isSame(canonical(next.slice()), target)) return
      found = { state: next.slice(), label: label() }
    })
    const { state: after, label } = found as unknown as { state: Int32Array; label: string }
    state = after
    labels.push(label)
  }
  return labels
}

const isSame = (one: Int32Array, other: Int32Array): boolean => one.every((value, at) => value === other[at])
