/** A graph's cycles. Everything here takes time in proportion to the steps, and no recursion: ten thousand in a row are no reason to run out of stack. */

export interface Step {
  readonly from: string
  readonly to: string
}

/** A number for each node: two nodes that lead to each other have the same one, others have not. (Kosaraju's algorithm.) */
export function componentNumbers(steps: readonly Step[]): ReadonlyMap<string, number> {
  const forward = groupBy(steps, ({ from }) => from)
  const backward = groupBy(steps, ({ to }) => to)
  const left: string[] = []
  const seen = new Set<string>()
  for (const { from } of steps) {
    walk(
      from,
      (node) => (forward.get(node) ?? []).map(({ to }) => to),
      seen,
      (node) => left.push(node),
    )
  }
  const numbers = new Map<string, number>()
  const seenBack = new Set<string>()
  for (const [number, start] of left.reverse().entries()) {
    walk(
      start,
      (node) => (backward.get(node) ?? []).map(({ from }) => from),
      seenBack,
      (node) => numbers.set(node, number),
    )
  }
  return numbers
}

/** Every node that can be reached and was not seen, told when everything behind it has been. */
function walk(
  start: string,
  next: (node: string) => readonly string[],
  seen: Set<string>,
  leave: (node: string) => void,
): void {
  if (seen.has(start)) return
  seen.add(start)
  const path = [{ node: start, rest: next(start).values() }]
  for (let last = path.at(-1); last !== undefined; last = path.at(-1)) {
    const step = last.rest.next()
    if (step.done) {
      path.pop()
      leave(last.node)
    } else if (!seen.has(step.value)) {
      seen.add(step.value)
      path.push({ node: step.value, rest: next(step.value).values() })
    }
  }
}

/** `Map.groupBy`, which Node 20 does not have. */
export function groupBy<Each, Key>(list: readonly Each[], keyOf: (each: Each) => Key): Map<Key, Each[]> {
  const groups = new Map<Key, Each[]>()
  for (const each of list) {
    const key = keyOf(each)
    const group = groups.get(key)
    if (group === undefined) groups.set(key, [each])
    else group.push(each)
  }
  return groups
}
