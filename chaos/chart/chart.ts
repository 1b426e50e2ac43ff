import type { DoneFault } from '../episode.ts'
import { clientOf } from '../history.ts'
import { lanesOf } from './lanes.ts'
import { type ChartSource, clientsOf, type HeldLease, pickScene, type Scene } from './scene.ts'
import { colourOf, legend, page, rect, text } from './svg.ts'

const WIDTH = 1_200
const LEFT = 112
const RIGHT = 16
const TOP = 64
const ROW = 30
const BAR = 18
const LANE = 15
const AXIS = 26
/** A bar with a label has at least this width for each of its letters. */
const LETTER = 6.2

export interface ChartOptions {
  /** The heading: what was run. */
  title: string
  clients: number
}

/** Draws who held a lock over time, and the faults. Returns undefined if there was no lease. */
export function chartOf(source: ChartSource, options: ChartOptions): { svg: string; interest: number } | undefined {
  const scene = pickScene(source)
  return scene && { svg: draw(source, scene, options), interest: scene.interest }
}

function draw(source: ChartSource, scene: Scene, { title, clients }: ChartOptions): string {
  const scale = (WIDTH - LEFT - RIGHT) / (scene.toMs - scene.fromMs)
  const x = (ms: number): number => LEFT + (Math.min(Math.max(ms, scene.fromMs), scene.toMs) - scene.fromMs) * scale
  const faults = scene.faults.map((done) => {
    const span = { from: x(done.fromMs), to: Math.max(x(done.toMs), x(done.fromMs) + 2) }
    return { done, ...span, label: done.fault.kind, width: Math.max(span.to - span.from, labelWidth(done)) }
  })
  const lanes = lanesOf(faults, ({ from, width }) => {
    const begin = Math.min(from, WIDTH - RIGHT - width)
    return { begin, end: begin + width + 6 }
  })
  const rowTop = (row: number): number => TOP + row * ROW
  const rowsEnd = rowTop(clients + 1)
  const faultTop = rowsEnd + AXIS + 8
  const faultsEnd = faultTop + Math.max(lanes.length, 1) * LANE
  const height = faultsEnd + 50
  const bars = new Bars(scene, source, x)
  const seconds = (ms: number): string => ((ms - scene.startMs) / 1_000).toFixed(1)

  const parts: string[] = [
    text({ x: 16, y: 26, className: 'title', is: title }),
    text({
      x: 16,
      y: 46,
      className: 'dim',
      is:
        `who held the lock ${JSON.stringify(scene.name)} from second ${seconds(scene.fromMs)} to ` +
        `${seconds(scene.toMs)}: ${scene.leases.length} leases, ${scene.faults.length} faults. ` +
        'The number in a bar is the place of its fencing token.',
    }),
  ]
  // The rows, first that of all clients together: where its bars do not overlap, there was one holder at a time.
  for (let row = 0; row <= clients; row += 1) {
    parts.push(rect({ x: LEFT, y: rowTop(row), width: WIDTH - LEFT - RIGHT, height: ROW - 4, className: 'row' }))
    const is = row === 0 ? 'all clients' : `client ${row - 1}`
    parts.push(text({ x: LEFT - 10, y: rowTop(row) + 18, className: row === 0 ? 'label bold' : 'label', is }))
  }
  parts.push(axis(scene, x, rowsEnd))
  for (const { done, from, to } of faults) {
    for (const row of rowsOf(done, clients)) {
      parts.push(rect({ x: from, y: rowTop(row), width: to - from, height: ROW - 4, className: 'hit' }))
    }
  }
  for (const lease of scene.leases) {
    const client = clientOf(lease.id)
    parts.push(bars.draw(lease, rowTop(0) + (ROW - 4 - BAR) / 2))
    parts.push(bars.draw(lease, rowTop(client + 1) + (ROW - 4 - BAR) / 2))
  }
  for (const { first, second } of source.verdict.overlaps) {
    if (first.name !== scene.name || second.knownAt > scene.toMs) continue
    const from = x(second.knownAt)
    const to = Math.max(x(Math.min(first.heldUntil ?? 0, second.heldUntil ?? 0)), from + 3)
    if (to <= LEFT + 3) continue
    const is = `two holders: ${first.id} with token ${first.token}, ${second.id} with token ${second.token}`
    parts.push(rect({ x: from, y: TOP - 4, width: to - from, height: rowsEnd - TOP + 4, className: 'violation', is }))
  }
  parts.push(text({ x: LEFT - 10, y: faultTop + 11, className: 'label bold', is: 'faults' }))
  for (const [lane, members] of lanes.entries()) {
    for (const { done, from, to, label, width } of members) {
      const y = faultTop + lane * LANE
      const is = describe(done, seconds)
      parts.push(rect({ x: from, y: y + 1, width: to - from, height: LANE - 3, className: 'fault', is }))
      const at = Math.min(from, WIDTH - RIGHT - width)
      parts.push(text({ x: at + 4, y: y + 10.5, className: 'kind', is: label }))
    }
  }
  parts.push(legend({ x: 16, y: faultsEnd + 24, clients, hasViolation: bars.hasViolation }))
  return page({ width: WIDTH, height, title: `${title}: who held a lock over time`, clients, parts })
}

/** Faults of servers hit the row of all clients. */
function rowsOf(done: DoneFault, clients: number): number[] {
  const hit = clientsOf(done)
  if (hit === undefined) return Array.from({ length: clients + 1 }, (_, row) => row)
  return hit.filter((client) => client < clients).map((client) => client + 1)
}

const labelWidth = ({ fault }: DoneFault): number => fault.kind.length * LETTER + 6

function describe({ fault, fromMs, toMs }: DoneFault, seconds: (ms: number) => string): string {
  const { kind, atMs: _, ...details } = fault
  return `${kind} from second ${seconds(fromMs)} to ${seconds(toMs)} ${JSON.stringify(details)}`
}

/** A line and a number for every second second. */
function axis({ fromMs, toMs, startMs }: Scene, x: (ms: number) => number, y: number): string {
  const marks: string[] = []
  for (let second = Math.ceil((fromMs - startMs) / 1_000); startMs + second * 1_000 <= toMs; second += 1) {
    const at = x(startMs + second * 1_000)
    const isEven = second % 2 === 0
    marks.push(`<path class="tick" d="M${at.toFixed(1)} ${TOP}V${y + (isEven ? 4 : 0)}"/>`)
    if (isEven) marks.push(text({ x: at, y: y + 17, className: 'second', is: `${second} s` }))
  }
  return marks.join('\n')
}

/** Draws leases as bars in the colour of their client. */
class Bars {
  readonly #x: (ms: number) => number
  readonly #places: ReadonlyMap<number, number>
  readonly #wrong: ReadonlySet<string>
  readonly #startMs: number

  constructor({ name, startMs }: Scene, { leases, verdict }: ChartSource, x: (ms: number) => number) {
    const tokens = leases.filter((lease) => lease.name === name).map(({ token }) => token)
    this.#places = new Map(tokens.sort((a, b) => a - b).map((token, at) => [token, at + 1]))
    this.#wrong = new Set([
      ...verdict.overlaps.flatMap(({ first, second }) => [first.id, second.id]),
      ...verdict.falling.map(({ after }) => after.id),
    ])
    this.#x = x
    this.#startMs = startMs
  }

  get hasViolation(): boolean {
    return this.#wrong.size > 0
  }

  draw(lease: HeldLease, y: number): string {
    const from = this.#x(lease.knownAt)
    const width = Math.max(this.#x(lease.heldUntil) - from, 1.5)
    const place = `${this.#places.get(lease.token)}`
    const seconds = [lease.knownAt, lease.heldUntil].map((ms) => ((ms - this.#startMs) / 1_000).toFixed(3))
    const wrong = this.#wrong.has(lease.id) ? ' wrong' : ''
    const times = `from ${seconds[0]} s to ${seconds[1]} s`
    const is = `${lease.id} held it with token ${lease.token} ${times}, ${ENDS[lease.end]}`
    const className = `${colourOf(clientOf(lease.id))}${wrong}`
    const bar = rect({ x: from, y, width, height: BAR, className, is })
    const label = place.length * LETTER + 4 <= width
    const name = label ? text({ x: from + width / 2, y: y + 13, className: 'token', is: place }) : ''
    // An end that the holder did not choose has a mark.
    const end = from + width
    const mark = `M${end.toFixed(1)} ${y - 3}v${BAR + 6}`
    return `${bar}${name}${lease.end === 'released' ? '' : `<path class="${lease.end}" d="${mark}"/>`}`
  }
}

const ENDS: Readonly<Record<HeldLease['end'], string>> = {
  released: 'and released it',
  lost: 'and lost it',
  killed: 'until its process was killed',
}
