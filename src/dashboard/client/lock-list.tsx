import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { count, counted, visible } from './format.ts'
import { type LiveStore, type Lock, live, storeNow } from './live.ts'
import { type Filter, type Order, prefixesOf, STATES, type State, selectLocks } from './lock-filter.ts'
import { ageOf, Empty, holderOf, modeOf, StoreText, TimeLeft } from './parts.tsx'
import { lockHref } from './route.ts'
import { VirtualList } from './virtual-list.tsx'

const COLUMNS: readonly [Order, string][] = [
  ['name', 'Name'],
  ['mode', 'Mode'],
  ['holder', 'Holder'],
  ['age', 'Held for'],
  ['left', 'Time left'],
  ['waiters', 'Waiting'],
]
/** The first click on these shows the largest first. */
const DESCENDING: ReadonlySet<Order> = new Set(['age', 'waiters'])
/** Kept while other pages are shown. */
let lastFilter: Filter = { search: '', prefix: '', state: 'all', order: 'name', isDescending: false }

export function LockList({ stores, showsStore }: { stores: LiveStore[]; showsStore: boolean }) {
  const [filter, setFilter] = useState(lastFilter)
  const change = (part: Partial<Filter>): void => {
    lastFilter = { ...lastFilter, ...part }
    setFilter(lastFilter)
  }
  const version = stores.map((store) => `${store.index}.${store.version}`).join()
  // Renewals change only ends. While nothing depends on those, the order stays as it is.
  const dependsOnEnds = filter.order === 'left' || filter.state === 'ending'
  const locks = useMemo(() => selectLocks(stores, filter), [version, filter, dependsOnEnds && live.steps])
  const prefixes = useMemo(() => prefixesOf(stores), [version])
  const total = stores.reduce((sum, store) => sum + store.locks.size, 0)
  const isNarrow = useNarrow()
  const order = (by: Order): void =>
    change({ order: by, isDescending: filter.order === by ? !filter.isDescending : DESCENDING.has(by) })
  return (
    <section class={`panel list ${showsStore ? 'with-store' : ''}`} aria-label="Locks">
      <FilterBar filter={filter} change={change} prefixes={prefixes} shown={locks.length} total={total} />
      <div role="table" aria-label="Locks" aria-rowcount={locks.length + 1} class="table">
        <div role="rowgroup" class="head">
          <div role="row" class="row" aria-rowindex={1}>
            {[...COLUMNS, ...(showsStore ? [['store', 'Store'] as const] : [])].map(([by, title]) => (
              <span
                role="columnheader"
                class={by}
                aria-sort={filter.order === by ? (filter.isDescending ? 'descending' : 'ascending') : 'none'}
              >
                <button type="button" onClick={() => order(by)}>
                  {title}
                </button>
              </span>
            ))}
          </div>
        </div>
        <VirtualList
          items={locks}
          rowHeight={isNarrow ? 78 : 40}
          keyOf={({ store, id }) => `${store}-${id}`}
          row={(lock, tabIndex) => <LockCells lock={lock} tabIndex={tabIndex} showsStore={showsStore} />}
        />
      </div>
      {locks.length === 0 && <Nothing stores={stores} total={total} />}
    </section>
  )
}

function Nothing({ stores, total }: { stores: LiveStore[]; total: number }) {
  if (total > 0) return <Empty>No lock matches.</Empty>
  return <Empty>{stores.some(({ isRead }) => isRead) ? 'No lock is held.' : 'Reading …'}</Empty>
}

function LockCells({ lock, tabIndex, showsStore }: { lock: Lock; tabIndex: 0 | -1; showsStore: boolean }) {
  const store = live.stores[lock.store]
  const nowMs = store === undefined ? 0 : storeNow(store)
  return (
    <>
      <span role="cell" class="name">
        <i class={`dot ${lock.isDeadlocked ? 'bad' : lock.waiters > 0 ? 'warn' : 'good'}`} aria-hidden="true" />
        <a href={lockHref(lock.store, lock.name)} data-row tabIndex={tabIndex}>
          <StoreText text={lock.name} />
        </a>
        {lock.isDeadlocked && <em class="tag bad">deadlock</em>}
        {lock.isElection && <em class="tag">leader</em>}
      </span>
      <span role="cell" class="mode">
        {modeOf(lock)}
      </span>
      <span role="cell" class="holder">
        <StoreText text={holderOf(lock)} />
      </span>
      <span role="cell" class="age number">
        {ageOf(lock, nowMs)}
      </span>
      <span role="cell" class="left">
        <TimeLeft lock={lock} nowMs={nowMs} />
      </span>
      <span role="cell" class={`waiters number ${lock.waiters > 0 ? 'some' : ''}`}>
        {count(lock.waiters)}
      </span>
      {showsStore && (
        <span role="cell" class="store">
          {store?.info.name.replace(/^[\w+]+:\/\//, '')}
        </span>
      )}
    </>
  )
}

interface FilterBarProps {
  readonly filter: Filter
  change(part: Partial<Filter>): void
  readonly prefixes: readonly [string, number][]
  readonly shown: number
  readonly total: number
}

function FilterBar({ filter, change, prefixes, shown, total }: FilterBarProps) {
  const search = useRef<HTMLInputElement>(null)
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement
      if (event.key !== '/' || isTyping) return
      event.preventDefault()
      search.current?.focus()
    }
    addEventListener('keydown', onKey)
    return () => removeEventListener('keydown', onKey)
  }, [])
  const isKnown = filter.prefix === '' || prefixes.some(([prefix]) => prefix === filter.prefix)
  return (
    <div class="filters" role="search">
      <input
        ref={search}
        type="search"
        placeholder="Search names and holders  ( / )"
        aria-label="Search names and holders"
        value={filter.search}
        onInput={(event) => change({ search: event.currentTarget.value })}
      />
      <select
        aria-label="Prefix"
        value={filter.prefix}
        onChange={(event) => change({ prefix: event.currentTarget.value })}
      >
        <option value="">All prefixes</option>
        {!isKnown && <option value={filter.prefix}>{visible(filter.prefix)}</option>}
        {prefixes.map(([prefix, each]) => (
          <option value={prefix}>
            {visible(prefix)} ({count(each)})
          </option>
        ))}
      </select>
      <select
        aria-label="State"
        value={filter.state}
        onChange={(event) => change({ state: event.currentTarget.value as State })}
      >
        {STATES.map(([state, title]) => (
          <option value={state}>{title}</option>
        ))}
      </select>
      <output class="muted" aria-live="off">
        {shown === total ? counted(total, 'lock') : `${count(shown)} of ${counted(total, 'lock')}`}
      </output>
    </div>
  )
}

const NARROW = matchMedia('(max-width: 720px)')

function useNarrow(): boolean {
  const [isNarrow, setNarrow] = useState(NARROW.matches)
  useEffect(() => {
    const changed = (): void => setNarrow(NARROW.matches)
    NARROW.addEventListener('change', changed)
    return () => NARROW.removeEventListener('change', changed)
  }, [])
  return isNarrow
}
