import { line, page, rect, text } from '../chart/svg.ts'
import { mib, type Report } from './report.ts'

const WIDTH = 1_000
const LEFT = 84
const RIGHT = 24
const TOP = 80
const PANEL = 120
const GAP = 44
const MIB = 2 ** 20

type Point = Report['samples'][number]

interface Series {
  label: string
  colour: number
  of(sample: Point): number
}

interface Panel {
  title: string
  unit: string
  series: Series[]
}

/** Draws memory in process and store, and what they have, over time. Every axis begins at 0. */
export function chartOf(report: Report): string {
  const { run, samples, grants, leasesAtATime } = report
  const panels = panelsOf(report)
  const height = TOP + panels.length * (PANEL + GAP) + 8
  const title = `${run.driver}: ${leasesAtATime.median} leases at a time for ${duration(run.seconds)}`
  const about =
    `${grants} grants (${report.grantsPerSecond.toFixed(0)} a second), ${report.done.instances} instances opened and ` +
    `closed, ${sum(report.cuts)} cuts of connections, seed ${run.seed}. Memory is measured after a collection.`
  const parts = [
    text({ x: 16, y: 26, className: 'title', is: title }),
    text({ x: 16, y: 46, className: 'dim', is: about }),
    text({ x: 16, y: 63, className: 'dim', is: afterwards(report) }),
    ...panels.map((panel, at) => draw(panel, samples, { y: TOP + at * (PANEL + GAP) + 18, seconds: run.seconds })),
  ]
  return page({ width: WIDTH, height, title: `${title}: memory over time`, clients: 0, parts })
}

/** What there was when everything had been closed. */
function afterwards({ memory, process, left, violations }: Report): string {
  const { before, after } = process
  const listeners = after.processListeners + after.signalListeners + after.clientListeners - before.processListeners
  const more = `${after.timers} timers, ${listeners} listeners, ${after.sockets - before.sockets} sockets`
  return (
    `After the end: heap ${mib(memory.after)}, store ${mib(memory.storeAfter)}; ` +
    `left are ${more}, ${left.wrong.length} leases, waiters or keys. ${violations.length} violations.`
  )
}

function panelsOf({ run }: Report): Panel[] {
  const isRedis = run.driver === 'redis'
  return [
    {
      title: 'memory of the client process',
      unit: 'MiB',
      series: [
        { label: 'resident', colour: 6, of: ({ rssBytes }) => rssBytes / MIB },
        { label: 'heap after a collection', colour: 0, of: ({ heapBytes }) => heapBytes / MIB },
      ],
    },
    {
      title: isRedis ? 'memory of Redis (used_memory)' : 'size of the tables and their indexes',
      unit: 'MiB',
      series: [{ label: '', colour: 1, of: ({ store }) => store.bytes / MIB }],
    },
    {
      title: 'leases, and what the store has',
      unit: '',
      series: [
        { label: isRedis ? 'keys' : 'rows', colour: 1, of: ({ store }) => store.entries },
        ...(isRedis ? [] : [{ label: 'dead rows', colour: 6, of: ({ store }: Point) => store.dead }]),
        { label: 'leases', colour: 3, of: ({ leases }) => leases },
      ],
    },
    {
      title: 'timers and sockets of the client process',
      unit: '',
      series: [
        { label: 'timers', colour: 2, of: ({ resources }) => resources.timers },
        { label: 'sockets', colour: 5, of: ({ resources }) => resources.sockets },
      ],
    },
  ]
}

function draw({ title, unit, series }: Panel, samples: readonly Point[], at: { y: number; seconds: number }): string {
  const { y, seconds } = at
  const width = WIDTH - LEFT - RIGHT
  const most = niceAbove(Math.max(1, ...series.flatMap(({ of }) => samples.map(of))))
  const toX = (atSeconds: number): number => LEFT + (Math.min(atSeconds, seconds) / seconds) * width
  const toY = (value: number): number => y + PANEL - (value / most) * PANEL
  const minutes = Math.max(1, Math.ceil(seconds / 60 / 10))
  const parts = [
    text({ x: LEFT, y: y - 6, className: 'bold', is: title }),
    rect({ x: LEFT, y, width, height: PANEL, className: 'row' }),
    ...[0, 0.5, 1].map((part) =>
      text({ x: LEFT - 8, y: toY(part * most) + 4, className: 'label', is: `${part * most} ${unit}`.trim() }),
    ),
  ]
  for (let minute = 0; minute * 60 <= seconds; minute += minutes) {
    const x = toX(minute * 60)
    parts.push(`<path class="tick" d="M${x.toFixed(1)} ${y}v${PANEL + 3}"/>`)
    parts.push(text({ x, y: y + PANEL + 16, className: 'second', is: `${minute} min` }))
  }
  for (const { colour, of } of series) {
    parts.push(line({ client: colour, points: samples.map((each) => [toX(each.atSeconds), toY(of(each))] as const) }))
  }
  // From the right end, so that they are beside the title and above all lines.
  let x = WIDTH - RIGHT
  for (const { label, colour } of series.filter((each) => each.label !== '')) {
    x -= label.length * 6.6 + 26
    parts.push(line({ client: colour, points: [[x, y - 10] as const, [x + 14, y - 10] as const] }))
    parts.push(text({ x: x + 18, y: y - 6, className: 'dim', is: label }))
  }
  return parts.join('\n')
}

/** The next number above that a reader can halve: 1, 2, 4, 6, 8, 10 times a power of ten. */
function niceAbove(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value))
  return ([1, 2, 4, 6, 8, 10].find((each) => each * power >= value) ?? 10) * power
}

const sum = (counts: Readonly<Record<string, number>>): number =>
  Object.values(counts).reduce((all, each) => all + each, 0)
const duration = (seconds: number): string =>
  seconds >= 60 ? `${Math.round(seconds / 60)} minutes` : `${seconds} seconds`
