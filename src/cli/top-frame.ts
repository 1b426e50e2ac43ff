import { durationText } from './duration.ts'
import { shownLines } from './show.ts'
import { type Column, tableOf } from './table.ts'
import { cutText, type Paint, padText, printable, textWidth, wrapText } from './text.ts'
import type { LockRow, Rate } from './top-locks.ts'
import type { Page, TopSorting, TopState } from './top-state.ts'

export interface FrameOptions {
  readonly columns: number
  readonly rows: number
  readonly nowMs: number
  readonly paint: Paint
}

/** What the terminal shows: a line for each of its rows, none wider than it is. */
export function frameOf(state: TopState, options: FrameOptions): string[] {
  const { columns, rows, paint } = options
  const { height } = pageOf(state, options)
  const body = bodyOf(state, options, height)
  const lines = [
    ...headOf(state, options),
    ...body,
    ...Array.from({ length: Math.max(0, rows - CHROME - body.length) }, () => ''),
    paint('dim', cutText(keysOf(state), columns)),
  ]
  // A terminal of a few rows shows the beginning.
  return lines.slice(0, rows)
}

/** How much of the view the screen shows. */
export function pageOf(state: TopState, options: FrameOptions): Page {
  const body = Math.max(1, options.rows - CHROME)
  if (state.view === 'detail') return { height: body, length: detailOf(state, options).length }
  return { height: Math.max(1, body - 1), length: state.arranged.length }
}

/** The lines above and below the view. */
const CHROME = 4

function headOf(state: TopState, { columns, nowMs, paint }: FrameOptions): string[] {
  const clock = timeText(nowMs)
  const title = cutText(`holdfast top  ${printable(state.place)}`, columns - clock.length - 2)
  const gap = ' '.repeat(Math.max(1, columns - textWidth(title) - clock.length))
  const { outage } = state
  const [style, first, second] =
    outage === undefined
      ? (['bold', summaryOf(state, nowMs), noticesOf(state).join(', ')] as const)
      : (['red', outageText(outage, nowMs), printable(outage.reason)] as const)
  return [
    cutText(`${title}${gap}${clock}`, columns),
    paint(style, cutText(first, columns)),
    paint('yellow', cutText(second, columns)),
  ]
}

const outageText = ({ sinceMs }: { readonly sinceMs: number }, nowMs: number): string =>
  `the store does not answer since ${timeText(sinceMs)} (${durationText(nowMs - sinceMs)}); trying again`

function summaryOf({ rows, handOffs, view }: TopState, nowMs: number): string {
  // They are not read while one lock is inspected.
  if (view === 'detail') return ''
  if (rows === undefined) return 'no answer yet'
  const held = rows.filter(({ holders }) => holders > 0).length
  const waiters = rows.reduce((sum, row) => sum + row.waiters, 0)
  const since = rows.reduce((first, { waitingSinceMs = nowMs }) => Math.min(first, waitingSinceMs), nowMs)
  const longest = waiters === 0 ? '' : `, the longest for ${durationText(nowMs - since)}`
  return `${counted(held, 'lock')} held, ${counted(waiters, 'waiter')}${longest}, ${rateText(handOffs)} hand-offs/s`
}

/** Why the view does not show all locks. */
function noticesOf({ isComplete, rows = [], prefix, filter, view, arranged }: TopState): string[] {
  if (view === 'detail') return []
  const notices: string[] = []
  if (!isComplete) notices.push(`only ${counted(rows.length, 'lock')}, there are more: use holdfast top PREFIX`)
  if (prefix !== '') notices.push(`names that begin with "${printable(prefix)}"`)
  if (filter !== '' && view !== 'filter') {
    notices.push(`filter "${printable(filter)}": ${arranged.length} of ${rows.length}`)
  }
  return notices
}

function bodyOf(state: TopState, options: FrameOptions, height: number): string[] {
  if (state.view === 'help') return HELP.map((line) => cutText(line, options.columns)).slice(0, height + 1)
  if (state.view === 'detail') {
    const lines = detailOf(state, options)
    const from = Math.min(state.detail?.scroll ?? 0, Math.max(0, lines.length - height))
    return lines.slice(from, from + height)
  }
  return listOf(state, options, height)
}

function listOf({ arranged, cursor, rows, outage, sort }: TopState, options: FrameOptions, height: number): string[] {
  const { columns, nowMs, paint } = options
  if (arranged.length === 0) {
    return rows === undefined ? [] : ['', rows.length === 0 ? 'no locks are held' : 'the filter matches no lock']
  }
  const from = Math.floor(cursor / height) * height
  const cells = arranged.slice(from, from + height).map((row) => cellsOf(row, nowMs))
  const [head = '', ...lines] = tableOf(columnsBy(sort), cells, columns)
  return [
    paint('cyan', cutText(head, columns)),
    ...lines.map((line, at) => {
      if (from + at === cursor) return `${REVERSE}${padText(line, columns)}${RESET}`
      // What was read before an outage is old.
      return outage === undefined ? cutText(line, columns) : paint('dim', cutText(line, columns))
    }),
  ]
}

/** The title of the column by which the rows are sorted is marked. */
const columnsBy = (sort: TopSorting): Column[] =>
  COLUMNS.map(({ sorting, ...column }) => (sorting === sort ? { ...column, title: `${column.title}↓` } : column))

const COLUMNS: readonly (Column & { readonly sorting?: TopSorting })[] = [
  { title: 'LOCK', sorting: 'name', shrinks: true },
  { title: 'HOLDER', shrinks: true },
  { title: 'AGE', sorting: 'age', minWidth: 7 },
  { title: 'LEFT', minWidth: 6 },
  { title: 'WAITERS', sorting: 'waiters', minWidth: 8 },
  { title: 'LONGEST', sorting: 'longest', minWidth: 8 },
  { title: 'HAND/S', sorting: 'handoffs', minWidth: 7 },
]

function cellsOf(row: LockRow, nowMs: number): string[] {
  const { lockName, holderId, holders, acquiredAtMs, expiresAtMs, waiters, waitingSinceMs, handOffs } = row
  const others = holders > 1 ? ` +${holders - 1}` : ''
  const left = expiresAtMs === undefined ? 'no end' : durationText(expiresAtMs - nowMs)
  return [
    printable(lockName),
    holderId === undefined ? 'none' : `${printable(holderId)}${others}`,
    acquiredAtMs === undefined ? (holders > 0 ? 'unknown' : '') : durationText(nowMs - acquiredAtMs),
    holders > 0 ? left : '',
    `${waiters}`,
    waitingSinceMs === undefined ? '' : durationText(nowMs - waitingSinceMs),
    handOffs.perSecond === 0 ? '' : rateText(handOffs),
  ]
}

function detailOf({ detail }: TopState, { columns, nowMs, paint }: FrameOptions): string[] {
  if (detail === undefined) return []
  if (detail.shown === undefined) return [printable(detail.lockName), '', 'reading …']
  return shownLines(detail.shown, { nowMs, width: columns }).flatMap(({ text, style }) =>
    wrapText(text, columns).map((line) => (style === undefined ? line : paint(style, line))),
  )
}

function keysOf({ view, filter }: TopState): string {
  if (view === 'filter') return `filter: ${printable(filter)}▏  enter keep  esc clear`
  if (view === 'detail') return '↑↓ scroll  q back'
  if (view === 'help') return 'any key: back'
  return '↑↓ select  enter inspect  s sort  / filter  ? help  q quit'
}

const HELP = [
  '↑ ↓ PgUp PgDn Home End    select a lock; also k, j, g and G',
  'enter                     inspect it: holders, queue, deadlock; q goes back',
  'w l a h n                 sort by waiters, longest wait, age, hand-offs, name',
  's                         the next of these orders',
  '/                         show only locks whose name or holder contains a text',
  'esc                       show all again',
  'ctrl-l                    draw everything again',
  'q                         quit',
  '',
  'HAND/S counts how often a lock has passed to another holder, over the last ten',
  'looks at the store. Between two looks only one hand-off of a lock is seen:',
  '"1.0+" is a lock that had another holder at every look, and maybe more often.',
]

const rateText = ({ perSecond, isAtLeast }: Rate): string => `${perSecond.toFixed(1)}${isAtLeast ? '+' : ''}`

const timeText = (ms: number): string => new Date(ms).toTimeString().slice(0, 8)

const counted = (count: number, what: string): string =>
  `${count.toLocaleString('en')} ${what}${count === 1 ? '' : 's'}`

/** Not a colour: the selection must be seen without colours, too. */
const REVERSE = '\u001b[7m'
const RESET = '\u001b[0m'
