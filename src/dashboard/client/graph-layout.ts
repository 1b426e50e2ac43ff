import type { GraphEdge, GraphNode, WaitGraph } from '../wire.ts'

export interface Placed {
  readonly node: GraphNode
  readonly x: number
  readonly y: number
}

export interface PlacedGraph {
  readonly nodes: readonly Placed[]
  readonly edges: readonly { readonly edge: GraphEdge; readonly path: string }[]
  readonly width: number
  readonly height: number
}

export const NODE_WIDTH = 200
export const NODE_HEIGHT = 38
const COLUMN = 264
const ROW = 56
const MARGIN = 14

/**
 * Places a graph in columns, from the claims that wait to the holders that they wait for. Parts that are not connected
 * come one below the other, those with a cycle first. An edge that closes a cycle goes back around the others.
 */
export function layOut({ nodes, edges }: WaitGraph): PlacedGraph {
  const placed = new Map<string, Placed>()
  let top = MARGIN
  let width = 0
  for (const part of partsOf(nodes, edges)) {
    const ids = new Set(part.map(({ id }) => id))
    const own = edges.filter(({ from }) => ids.has(from))
    const columns = columnsOf(part, own)
    const height = Math.max(...columns.map((column) => column.length))
    const hasCycle = part.some(({ inCycle }) => inCycle)
    for (const [column, list] of columns.entries()) {
      for (const [row, node] of list.entries()) {
        const y = top + (row + (height - list.length) / 2) * ROW
        placed.set(node.id, { node, x: MARGIN + column * COLUMN, y })
      }
    }
    width = Math.max(width, columns.length * COLUMN)
    // Room for the edges that go back.
    top += height * ROW + (hasCycle ? ROW : ROW / 3)
  }
  return {
    nodes: [...placed.values()],
    edges: edges.map((edge) => ({ edge, path: pathOf(placed.get(edge.from), placed.get(edge.to)) })),
    width: Math.max(0, width - COLUMN + NODE_WIDTH + 2 * MARGIN + 30),
    height: top + MARGIN,
  }
}

/** The connected parts, those with a cycle first, then the largest ones. */
function partsOf(nodes: readonly GraphNode[], edges: readonly GraphEdge[]): GraphNode[][] {
  const neighbours = new Map<string, string[]>(nodes.map(({ id }) => [id, []]))
  for (const { from, to } of edges) {
    neighbours.get(from)?.push(to)
    neighbours.get(to)?.push(from)
  }
  const byId = new Map(nodes.map((node) => [node.id, node]))
  const seen = new Set<string>()
  const parts: GraphNode[][] = []
  for (const { id } of nodes) {
    const part: GraphNode[] = []
    const open = [id]
    for (let next = open.pop(); next !== undefined; next = open.pop()) {
      if (seen.has(next)) continue
      seen.add(next)
      const node = byId.get(next)
      if (node !== undefined) part.push(node)
      open.push(...(neighbours.get(next) ?? []))
    }
    if (part.length > 0) parts.push(part)
  }
  const rank = (part: GraphNode[]): number => (part.some(({ inCycle }) => inCycle) ? 1e6 : 0) + part.length
  return parts.sort((a, b) => rank(b) - rank(a))
}

/** Each node one column behind everything that leads to it, edges that close a cycle left out. */
function columnsOf(nodes: readonly GraphNode[], edges: readonly GraphEdge[]): GraphNode[][] {
  const outgoing = new Map<string, string[]>(nodes.map(({ id }) => [id, []]))
  const incoming = new Map<string, number>(nodes.map(({ id }) => [id, 0]))
  for (const { from, to } of edges) {
    outgoing.get(from)?.push(to)
    incoming.set(to, (incoming.get(to) ?? 0) + 1)
  }
  const columnOf = new Map<string, number>()
  const onPath = new Set<string>()
  const visit = (id: string, column: number): void => {
    if (onPath.has(id) || column <= (columnOf.get(id) ?? -1) || column > nodes.length) return
    columnOf.set(id, column)
    onPath.add(id)
    for (const next of outgoing.get(id) ?? []) visit(next, column + 1)
    onPath.delete(id)
  }
  const starts = nodes.filter(({ id }) => incoming.get(id) === 0)
  // In a cycle, every node has an edge to it. A holder is as good a start as any other.
  for (const { id } of starts) visit(id, 0)
  for (const { id, kind } of nodes) if (!columnOf.has(id) && kind === 'holder') visit(id, 0)
  for (const { id } of nodes) if (!columnOf.has(id)) visit(id, 0)
  const columns: GraphNode[][] = []
  for (const node of nodes) {
    const column = columnOf.get(node.id) ?? 0
    while (columns.length <= column) columns.push([])
    columns[column]?.push(node)
  }
  return columns
}

function pathOf(from: Placed | undefined, to: Placed | undefined): string {
  if (from === undefined || to === undefined) return ''
  const [x1, y1] = [from.x + NODE_WIDTH, from.y + NODE_HEIGHT / 2]
  const [x2, y2] = [to.x - 7, to.y + NODE_HEIGHT / 2]
  if (x2 > x1) {
    const bend = (x2 - x1) / 2
    return `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`
  }
  // Below both, and back to the left.
  const [sx, ex] = [from.x + NODE_WIDTH / 2, to.x + NODE_WIDTH / 2]
  const bottom = Math.max(from.y, to.y) + NODE_HEIGHT
  return `M${sx},${from.y + NODE_HEIGHT} C${sx},${bottom + 46} ${ex},${bottom + 46} ${ex},${to.y + NODE_HEIGHT + 7}`
}
