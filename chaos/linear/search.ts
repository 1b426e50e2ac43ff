import { FREE, keyOf, type LockModel, type LockState, type Operation, step } from './model.ts'

/** A window with more operations is not searched. */
export const MAX_OPERATIONS = 5_000
/** A search that has seen this many pairs of a state and a set of operations ends without a verdict. */
export const MAX_CONFIGURATIONS = 200_000

export interface Bounds {
  operations: number
  configurations: number
}

export type Finding =
  | { verdict: 'linearizable' }
  | { verdict: 'violation'; text: string }
  | { verdict: 'undecided'; text: string }

/**
 * Looks for an order of the operations that a correct lock could have executed one after the other, in which each one
 * takes effect between its begin and its end. It is the search of Wing and Gong: take any operation that began before
 * every other open operation ended, execute it on the model, and go on with the rest; go back when nothing fits.
 * A pair of a state and a set of executed operations that was seen before is not searched twice.
 */
export function search(
  model: LockModel,
  operations: readonly Operation[],
  { start = FREE, bounds = {} }: { start?: LockState; bounds?: Partial<Bounds> } = {},
): Finding {
  const { operations: mostOperations = MAX_OPERATIONS, configurations = MAX_CONFIGURATIONS } = bounds
  if (operations.length > mostOperations) {
    return { verdict: 'undecided', text: `${operations.length} operations are more than ${mostOperations}` }
  }
  const open = new OpenOperations(model, operations)
  const seen = new Set<string>()
  const path: Node[] = []
  let node: Node = { state: start, choices: open.choices() }
  let furthest = { executed: 0, text: '' }
  while (open.answersLeft > 0) {
    if (open.executed >= furthest.executed) furthest = { executed: open.executed, text: open.explain(node.state, path) }
    const at = node.choices.pop()
    if (at === undefined) {
      const last = path.pop()
      if (last?.at === undefined) return { verdict: 'violation', text: furthest.text }
      open.undo(last.at)
      node = last
      continue
    }
    const state = step(model, node.state, open.operation(at))
    if (state === undefined) continue
    // Every order that works with this release later works with it now.
    if (open.isFree(at)) node.choices.length = 0
    open.execute(at)
    const key = `${open.key()} ${keyOf(state)}`
    if (seen.has(key)) {
      open.undo(at)
      continue
    }
    if (seen.size >= configurations) {
      return { verdict: 'undecided', text: `no verdict after ${configurations} configurations` }
    }
    seen.add(key)
    path.push({ ...node, at })
    node = { state, choices: open.choices() }
  }
  return { verdict: 'linearizable' }
}

interface Node {
  state: LockState
  /** What is still to be tried from here. The last one is next. */
  choices: number[]
  /** What was executed from here. */
  at?: number
}

/** The operations that have not been executed. */
class OpenOperations {
  readonly #operations: readonly Operation[]
  readonly #isFenced: boolean
  readonly #isFree: readonly boolean[]
  readonly #byBegin: Sequence
  /** The answered operations in the order of their ends. */
  readonly #byEnd: Sequence
  /** The grants in the order of their tokens. */
  readonly #byToken: Sequence
  readonly #isExecuted: boolean[]
  executed = 0
  answersLeft: number

  constructor({ isFenced }: LockModel, operations: readonly Operation[]) {
    const inOrder = operations.toSorted((a, b) => a.beginMs - b.beginMs)
    this.#operations = inOrder
    this.#isFenced = isFenced
    this.#isFree = freeReleases(inOrder)
    this.#isExecuted = inOrder.map(() => false)
    this.#byBegin = new Sequence(inOrder, ({ beginMs }) => beginMs, this.#isExecuted)
    this.#byEnd = new Sequence(inOrder, ({ endMs }) => endMs, this.#isExecuted)
    this.#byToken = new Sequence(inOrder, tokenOf, this.#isExecuted)
    this.answersLeft = this.#byEnd.length
  }

  operation(at: number): Operation {
    return this.#operations[at] as Operation
  }

  execute(at: number): void {
    this.#isExecuted[at] = true
    this.executed += 1
    if (this.operation(at).endMs !== undefined) this.answersLeft -= 1
  }

  undo(at: number): void {
    this.#isExecuted[at] = false
    this.executed -= 1
    if (this.operation(at).endMs !== undefined) this.answersLeft += 1
    for (const sequence of [this.#byBegin, this.#byEnd, this.#byToken]) sequence.undone(at)
  }

  /** Whether the operation is a release that makes nothing impossible. */
  isFree(at: number): boolean {
    return this.#isFree[at] === true
  }

  /** The operations that can be next, the most promising one last. */
  choices(): number[] {
    const ending = this.#byEnd.first()
    const untilMs = ending === undefined ? Number.POSITIVE_INFINITY : (this.operation(ending).endMs ?? 0)
    const smallest = this.#byToken.first()
    const choices: number[] = []
    for (let at = this.#byBegin.first() ?? 0; at < this.#operations.length; at += 1) {
      const operation = this.operation(at)
      if (operation.beginMs > untilMs) break
      if (this.#isExecuted[at]) continue
      // Tokens rise, so a grant with a larger token than another one can only come after it.
      if (this.#isFenced && tokenOf(operation) !== undefined && at !== smallest) continue
      choices.push(at)
    }
    const promise = (at: number): number =>
      this.isFree(at) ? Number.NEGATIVE_INFINITY : (this.operation(at).endMs ?? Number.POSITIVE_INFINITY)
    return choices.sort((a, b) => promise(b) - promise(a))
  }

  /** The set of executed operations: all before the first open one, and the bits of the others. */
  key(): string {
    const first = this.#byBegin.first() ?? 0
    let key = `${first}:`
    for (let at = first; at < this.#operations.length; at += 16) {
      let bits = 0
      for (let bit = 0; bit < 16; bit += 1) if (this.#isExecuted[at + bit]) bits |= 1 << bit
      key += String.fromCharCode(bits)
    }
    return key
  }

  explain({ held, mark }: LockState, path: readonly Node[]): string {
    const stuck = this.#byEnd.first()
    const before = path.slice(-3).flatMap(({ at }) => (at === undefined ? [] : [this.operation(at).id]))
    const holders = held.length === 0 ? 'it is free' : `it is held by ${held.map(({ lease }) => lease).join(', ')}`
    const token = this.#isFenced && mark > 0 ? `, and the last token is ${mark}` : ''
    const after = before.length === 0 ? 'at the begin' : `after ${before.join(', ')}`
    const claim = stuck === undefined ? '' : describe(this.operation(stuck))
    return `${after}, ${holders}${token}: ${claim} has no place`
  }
}

/** Some of the operations in a given order, of which the first open one is asked for again and again. */
class Sequence {
  readonly #order: readonly number[]
  readonly #places = new Map<number, number>()
  readonly #isExecuted: readonly boolean[]
  #at = 0

  constructor(
    operations: readonly Operation[],
    rankOf: (operation: Operation) => number | undefined,
    isExecuted: readonly boolean[],
  ) {
    const ranked = operations.flatMap((operation, at) => {
      const rank = rankOf(operation)
      return rank === undefined ? [] : [{ at, rank }]
    })
    this.#order = ranked.sort((a, b) => a.rank - b.rank).map(({ at }) => at)
    for (const [place, at] of this.#order.entries()) this.#places.set(at, place)
    this.#isExecuted = isExecuted
  }

  get length(): number {
    return this.#order.length
  }

  first(): number | undefined {
    while (this.#at < this.#order.length && this.#isExecuted[this.#order[this.#at] as number]) this.#at += 1
    return this.#order[this.#at]
  }

  undone(at: number): void {
    this.#at = Math.min(this.#at, this.#places.get(at) ?? this.#at)
  }
}

/**
 * The releases that make nothing impossible: the only ones of their lease, in a history in which no claim was refused
 * and no release came too late.
 */
function freeReleases(operations: readonly Operation[]): boolean[] {
  const counts = new Map<string, number>()
  for (const { lease, what } of operations) {
    if (what.answer === 'refused' || what.answer === false) return []
    if (what.kind === 'release') counts.set(lease, (counts.get(lease) ?? 0) + 1)
  }
  return operations.map(({ lease, what }) => what.kind === 'release' && counts.get(lease) === 1)
}

const tokenOf = (operation: Operation): number | undefined =>
  operation.what.kind === 'acquire' && operation.endMs !== undefined ? operation.what.token : undefined

function describe({ id, what }: Operation): string {
  if (what.kind === 'release') return `${id} (release: ${what.answer ? 'it was held' : 'it was not held'})`
  return `${id} (${what.answer}${what.token === undefined ? '' : ` with token ${what.token}`})`
}
