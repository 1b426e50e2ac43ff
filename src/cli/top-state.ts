import type { Key } from './screen.ts'
import type { Shown } from './show.ts'
import { compareTexts } from './text.ts'
import type { LockRow, Rate } from './top-locks.ts'

/** Everything that `top` shows. Keys and looks at the store make another state of it. */
export interface TopState {
  /** Where the store is. */
  readonly place: string
  /** Only names that begin with it are read. */
  readonly prefix: string
  readonly sort: TopSorting
  /** Only locks whose name or holder contains it are shown. */
  readonly filter: string
  readonly view: 'list' | 'filter' | 'detail' | 'help'
  /** The locks that were read. Undefined before the first answer. */
  readonly rows?: readonly LockRow[]
  /** Those that the filter lets through, in their order. */
  readonly arranged: readonly LockRow[]
  /** The hand-offs of all locks together. */
  readonly handOffs: Rate
  /** False if the store has more than is read at once. */
  readonly isComplete: boolean
  /** The selected row. It stays on its lock when the order changes. */
  readonly cursor: number
  /** The lock that is inspected. */
  readonly detail?: { readonly lockName: string; readonly shown?: Shown; readonly scroll: number }
  /** The store does not answer. */
  readonly outage?: { readonly sinceMs: number; readonly reason: string }
}

export type TopSorting = (typeof TOP_SORTINGS)[number]

export const TOP_SORTINGS = ['waiters', 'longest', 'age', 'handoffs', 'name'] as const

export const firstState = (options: Pick<TopState, 'place' | 'prefix' | 'sort'>): TopState => ({
  ...options,
  filter: '',
  view: 'list',
  arranged: [],
  handOffs: { perSecond: 0, isAtLeast: false },
  isComplete: true,
  cursor: 0,
})

/** The store has answered. */
export const withRows = (state: TopState, read: Pick<TopState, 'rows' | 'handOffs' | 'isComplete'>): TopState =>
  arrange({ ...answered(state), ...read })

/** The store has answered about one lock. It may no longer be the one that is inspected. */
export const withDetail = (state: TopState, shown: Shown): TopState =>
  state.detail?.lockName === shown.lockName
    ? { ...answered(state), detail: { ...state.detail, shown } }
    : answered(state)

/** The store has not answered. An outage began with its first failure. */
export const withOutage = (state: TopState, reason: string, nowMs: number): TopState => ({
  ...state,
  outage: { sinceMs: state.outage?.sinceMs ?? nowMs, reason },
})

function answered({ outage: _, ...state }: TopState): TopState {
  return state
}

/** How many lines of the view the screen shows, and how many there are. */
export interface Page {
  readonly height: number
  readonly length: number
}

/** What a key does. Undefined: it ends `top`. */
export function press(state: TopState, key: Key, page: Page): TopState | undefined {
  if (key === 'ctrl-c') return undefined
  if (state.view === 'filter') return pressInFilter(state, key)
  if (key === 'q' && state.view === 'list') return undefined
  if (state.view === 'help') return { ...state, view: 'list' }
  if (state.view === 'detail') return pressInDetail(state, key, page)
  const sort = SORT_KEYS[key]
  if (sort !== undefined) return arrange({ ...state, sort })
  const move = moves(page)[key]
  if (move !== undefined) return { ...state, cursor: within(state.cursor + move, page.length) }
  switch (key) {
    case 's':
      return arrange({ ...state, sort: TOP_SORTINGS[(TOP_SORTINGS.indexOf(state.sort) + 1) % 5] as TopSorting })
    case '/':
      return { ...state, view: 'filter' }
    case '?':
      return { ...state, view: 'help' }
    case 'escape':
      return arrange({ ...state, filter: '' })
    case 'enter': {
      const lock = state.arranged[state.cursor]
      return lock === undefined ? state : { ...state, view: 'detail', detail: { lockName: lock.lockName, scroll: 0 } }
    }
    default:
      return state
  }
}

function pressInFilter(state: TopState, key: Key): TopState {
  if (key === 'enter') return { ...state, view: 'list' }
  if (key === 'escape') return arrange({ ...state, view: 'list', filter: '' })
  if (key === 'backspace') return arrange({ ...state, filter: [...state.filter].slice(0, -1).join('') })
  if ([...key].length > 1 || state.filter.length >= MAX_FILTER) return state
  return arrange({ ...state, filter: state.filter + key })
}

function pressInDetail({ detail, ...state }: TopState, key: Key, page: Page): TopState {
  if (detail === undefined || key === 'q' || key === 'escape' || key === 'enter' || key === 'backspace') {
    return { ...state, view: 'list' }
  }
  const move = moves(page)[key] ?? 0
  return { ...state, detail: { ...detail, scroll: within(detail.scroll + move, page.length - page.height + 1) } }
}

const SORT_KEYS: Readonly<Record<string, TopSorting>> = {
  w: 'waiters',
  l: 'longest',
  a: 'age',
  h: 'handoffs',
  n: 'name',
}

const moves = ({ height }: Page): Readonly<Record<string, number>> => ({
  up: -1,
  k: -1,
  down: 1,
  j: 1,
  pageup: -height,
  pagedown: height,
  home: Number.NEGATIVE_INFINITY,
  g: Number.NEGATIVE_INFINITY,
  end: Number.POSITIVE_INFINITY,
  G: Number.POSITIVE_INFINITY,
})

/** Filters and sorts the rows again, and keeps the cursor on its lock. */
function arrange(state: TopState): TopState {
  const selected = state.arranged[state.cursor]?.lockName
  const text = state.filter.toLowerCase()
  const matches = ({ lockName, holderId = '' }: LockRow): boolean =>
    lockName.toLowerCase().includes(text) || holderId.toLowerCase().includes(text)
  const arranged = (state.rows ?? []).filter(matches).sort((a, b) => orders[state.sort](a, b) || byName(a, b))
  const place = arranged.findIndex(({ lockName }) => lockName === selected)
  return { ...state, arranged, cursor: place === -1 ? within(state.cursor, arranged.length) : place }
}

type Order = (a: LockRow, b: LockRow) => number

const byName: Order = (a, b) => compareTexts(a.lockName, b.lockName)
/** The earliest first. What is unknown comes last. */
const byTime = (a = Number.MAX_VALUE, b = Number.MAX_VALUE): number => a - b

const orders: Readonly<Record<TopSorting, Order>> = {
  waiters: (a, b) => b.waiters - a.waiters || byTime(a.waitingSinceMs, b.waitingSinceMs),
  longest: (a, b) => byTime(a.waitingSinceMs, b.waitingSinceMs),
  age: (a, b) => byTime(a.acquiredAtMs, b.acquiredAtMs),
  handoffs: (a, b) => b.handOffs.perSecond - a.handOffs.perSecond,
  name: byName,
}

const within = (place: number, length: number): number => Math.max(0, Math.min(place, length - 1))

const MAX_FILTER = 255
