/**
 * Strongly connected components of a graph. Everything here takes time in proportion to the number of edges, and does
 * not recurse: a path of ten thousand nodes must not overflow the stack.
 */

export interface Edge {
  readonly from: string
  readonly to: string
}

/**
 * Numbers the components (Kosaraju's algorithm): two nodes have the same number exactly if each can be reached from the
 * other.
 */
export function componentNumbers(edges: readonly Edge[]): ReadonlyMap<string, number> {
  const outgoing = groupBy(edges, ({ from }) => from)
  const incoming = groupBy(edges, ({ to }) => to)
  const finished: string[] = []
  const visited = new Set<string>()
  for (const { from } of edges) {
    visit(
      from,
      (node) => (outgoing.get(node) ?? []).map(({ to }) => to),
      visited,
      (node) => finished.push(node),
    )
  }
  const numbers = new Map<string, number>()
  const visitedBackwards = new Set<string>()
  for (const [number, start] of finished.reverse().entries()) {
    visit(
      start,
      (node) => (incoming.get(node) ?? []).map(({ from }) => from),
      visitedBackwards,
      (node) => numbers.set(node, number),
    )
  }
  return numbers
}

/**
 * Depth-first search. Calls `finish` for each node that can be reached and was not visited before, after all nodes
 * behind it are finished.
 */
function visit(
  start: string,
  next: (node: string) => readonly string[],
  visited: Set<string>,
  finish: (node: string) => void,
): void {
  if (visited.has(start)) return
  visited.add(start)
  const path = [{ node: start, rest: next(start).values() }]
  for (let last = path.at(-1); last !== undefined; last = path.at(-1)) {
    const following = last.rest.next()
    if (following.done) {
      path.pop()
      finish(last.node)
    } else if (!visited.has(following.value)) {
      visited.add(following.value)
      path.push({ node: following.value, rest: next(following.value).values() })
    }
  }
}

/** `Map.groupBy`, which Node.js 20 does not have. */
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
