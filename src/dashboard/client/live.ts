import { useEffect, useState } from 'preact/hooks'
import {
  type Bucket,
  DEADLOCKED,
  ELECTION,
  HISTORY_MS,
  type Kind,
  type Row,
  type Step,
  type StoreInfo,
  type Welcome,
} from '../wire.ts'

/** A row as the page uses it. Times are on the store's clock. */
export interface Lock {
  readonly id: number
  readonly store: number
  readonly name: string
  /** For the search. */
  readonly lowerName: string
  kind: Kind
  holder: string
  holders: number
  permits: number
  limit: number
  /** 0: unknown. */
  since: number
  /** 0: it has no end of its own. */
  end: number
  /** The longest time that was left: what a full bar means. */
  longest: number
  waiters: number
  waitingSince: number
  isDeadlocked: boolean
  isElection: boolean
  term: number
  value: string
}

export interface LiveStore {
  readonly index: number
  info: StoreInfo
  readonly locks: Map<number, Lock>
  history: Bucket[]
  base: number
  now: number
  /** On the page's own clock. */
  receivedAt: number
  error: string | undefined
  isPartial: boolean
  /** False before the first reading. */
  isRead: boolean
  /** Rises with each change that can move a row in the list. */
  version: number
}

export type Connection = 'connecting' | 'live' | 'lost'

/** Everything that the server has sent. It is changed in place: 10,000 rows are not copied twice a second. */
export const live = {
  welcome: { stores: [], actions: false } as Welcome,
  stores: [] as LiveStore[],
  connection: 'connecting' as Connection,
  steps: 0,
}

const listeners = new Set<() => void>()
let isScheduled = false

export function connectLive(url: string): void {
  const source = new EventSource(url)
  source.addEventListener('welcome', (event) => {
    live.welcome = JSON.parse((event as MessageEvent<string>).data) as Welcome
    live.stores = live.welcome.stores.map((info, index) => newStore(index, info))
    setConnection('live')
  })
  source.addEventListener('step', (event) => {
    applyStep(JSON.parse((event as MessageEvent<string>).data) as Step)
    notify()
  })
  source.addEventListener('error', () => {
    setConnection('lost')
    // The browser connects again by itself, but not after an answer such as 502 of a proxy whose server starts again.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => connectLive(url), RECONNECT_MS)
  })
}

const RECONNECT_MS = 2_000

function setConnection(connection: Connection): void {
  live.connection = connection
  notify()
}

const newStore = (index: number, info: StoreInfo): LiveStore => ({
  index,
  info,
  locks: new Map(),
  history: [],
  base: 0,
  now: Date.now(),
  receivedAt: performance.now(),
  error: undefined,
  isPartial: false,
  isRead: false,
  version: 0,
})

export function applyStep(step: Step): void {
  const store = live.stores[step.store]
  if (store === undefined) return
  live.steps += 1
  const { full, rows, ends, gone, figures } = step
  store.error = step.error
  store.isPartial = step.partial === true
  if (step.error === undefined) {
    store.now = step.now
    store.receivedAt = performance.now()
    store.isRead = true
  }
  if (full !== undefined) {
    store.locks.clear()
    store.base = full.base
    store.info = full.info
    store.history = [...full.history]
    store.version += 1
  }
  for (const row of rows ?? []) setRow(store, row)
  for (const id of gone ?? []) store.locks.delete(id)
  for (let at = 0; ends !== undefined && at < ends.length; at += 2) {
    const lock = store.locks.get(ends[at] as number)
    if (lock !== undefined) setEnd(store, lock, ends[at + 1] as number)
  }
  if (rows !== undefined || gone !== undefined) store.version += 1
  if (figures !== undefined) addFigures(store.history, figures)
}

function setRow(store: LiveStore, row: Row): void {
  const [id, name, kind, holder, holders, permits, limit, since, end, waiters, waitingSince, flags, term, value] = row
  const before = store.locks.get(id)
  const lock: Lock = {
    id,
    store: store.index,
    name,
    lowerName: before?.lowerName ?? name.toLowerCase(),
    kind,
    holder,
    holders,
    permits,
    limit,
    since: since === 0 ? 0 : store.base + since,
    end: 0,
    longest: before?.holder === holder ? before.longest : 0,
    waiters,
    waitingSince: waitingSince === 0 ? 0 : store.base + waitingSince,
    isDeadlocked: (flags & DEADLOCKED) !== 0,
    isElection: (flags & ELECTION) !== 0,
    term: term ?? 0,
    value: value ?? '',
  }
  setEnd(store, lock, end)
  store.locks.set(id, lock)
}

function setEnd(store: LiveStore, lock: Lock, end: number): void {
  lock.end = end === 0 ? 0 : store.base + end
  lock.longest = Math.max(lock.longest, lock.end - store.now)
}

function addFigures(history: Bucket[], bucket: Bucket): void {
  if (history.at(-1)?.[0] === bucket[0]) history[history.length - 1] = bucket
  else history.push(bucket)
  while (history[0] !== undefined && history[0][0] < bucket[0] - HISTORY_MS) history.shift()
}

/** The store's clock now. */
export const storeNow = (store: LiveStore): number => store.now + performance.now() - store.receivedAt

/** Renders once for all messages of a frame. */
function notify(): void {
  if (isScheduled) return
  isScheduled = true
  requestAnimationFrame(() => {
    isScheduled = false
    for (const listener of listeners) listener()
  })
}

/** Renders the component after each step, and every second for the times. */
export function useLive(): typeof live {
  const [, render] = useState(0)
  useEffect(() => {
    const listener = (): void => render((round) => round + 1)
    listeners.add(listener)
    return () => void listeners.delete(listener)
  }, [])
  return live
}

setInterval(notify, 1_000)
