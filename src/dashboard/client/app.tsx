import { useEffect, useRef, useState } from 'preact/hooks'
import { Elections } from './elections.tsx'
import { FigureStrip } from './figure-strip.tsx'
import { count, counted, visible } from './format.ts'
import { type LiveStore, useLive } from './live.ts'
import { LockList } from './lock-list.tsx'
import { LockPage } from './lock-page.tsx'
import { Rates } from './rates.tsx'
import { type Tab, tabHref, useRoute } from './route.ts'
import { Semaphores } from './semaphores.tsx'
import { ThemeButton } from './theme.tsx'
import { Waits } from './waits.tsx'

const TITLES: readonly [Tab, string][] = [
  ['locks', 'Locks'],
  ['elections', 'Elections'],
  ['semaphores', 'Semaphores'],
  ['rates', 'Rate limits'],
  ['waits', 'Waits'],
]

export function App() {
  const { stores, connection } = useLive()
  const route = useRoute()
  const main = useRef<HTMLElement>(null)
  /** -1: all of them. */
  const [chosen, setChosen] = useState(-1)
  const shown = stores.filter(({ index }) => chosen === -1 || index === chosen)
  const place = route.tab === 'lock' ? `lock ${route.store} ${route.name}` : route.tab
  const lastPlace = useRef(place)
  useEffect(() => {
    document.title = route.tab === 'lock' ? `${visible(route.name)} · Holdfast` : 'Holdfast'
    // A screen reader goes on at the new content, not at the top of the page.
    if (lastPlace.current !== place) main.current?.focus({ preventScroll: false })
    lastPlace.current = place
  }, [place])
  return (
    <>
      <header class="top">
        <a class="brand" href={tabHref('locks')}>
          <svg viewBox="0 0 32 32" width="26" height="26" aria-hidden="true">
            <rect width="32" height="32" rx="8" class="brand-box" />
            <path d="M10 14v-3a6 6 0 0 1 12 0v3" class="brand-line" />
            <rect x="7.5" y="13.5" width="17" height="12" rx="3" class="brand-body" />
          </svg>
          Holdfast
        </a>
        <StoreChips stores={stores} chosen={chosen} choose={setChosen} />
        <span class={`status ${connection}`}>
          <i aria-hidden="true" />
          {{ connecting: 'Connecting', live: 'Live', lost: 'Connection lost' }[connection]}
        </span>
        <ThemeButton />
      </header>
      <nav class="tabs" aria-label="Views">
        {TITLES.map(([tab, title]) => (
          <a href={tabHref(tab)} aria-current={route.tab === tab ? 'page' : undefined}>
            {title}
          </a>
        ))}
      </nav>
      <main ref={main} tabIndex={-1}>
        {connection === 'lost' && (
          <p class="notice bad">
            The server does not answer. The page shows what was known before, and connects again by itself. If{' '}
            <code>holdfast dashboard</code> was started again, open the new URL that it printed.
          </p>
        )}
        {shown.map((store) => (
          <StoreNotice store={store} />
        ))}
        {route.tab === 'lock' ? (
          <LockPage key={place} store={stores[route.store]} name={route.name} />
        ) : (
          <>
            <h1 class="hidden">{TITLES.find(([tab]) => tab === route.tab)?.[1]}</h1>
            {route.tab === 'locks' && <FigureStrip stores={shown} />}
            {route.tab === 'locks' && <LockList stores={shown} showsStore={shown.length > 1} />}
            {route.tab === 'elections' && <Elections stores={shown} />}
            {route.tab === 'semaphores' && <Semaphores stores={shown} />}
            {route.tab === 'rates' && <Rates stores={shown} />}
            {route.tab === 'waits' && <Waits stores={shown} />}
          </>
        )}
      </main>
      <Announcer />
    </>
  )
}

function StoreChips({ stores, chosen, choose }: { stores: LiveStore[]; chosen: number; choose(index: number): void }) {
  const isOne = stores.length === 1
  return (
    <div class="chips" role="group" aria-label="Stores">
      {!isOne && stores.length > 0 && (
        <button type="button" aria-pressed={chosen === -1} onClick={() => choose(-1)}>
          All stores
        </button>
      )}
      {stores.map(({ index, info, locks, error }) => (
        <button
          type="button"
          aria-pressed={isOne || chosen === index}
          onClick={() => choose(isOne || chosen === index ? -1 : index)}
        >
          <i class={error === undefined ? 'dot good' : 'dot bad'} aria-hidden="true" />
          <span class="chip-name">{info.name}</span>
          <b>{error === undefined ? count(locks.size) : 'down'}</b>
        </button>
      ))}
    </div>
  )
}

function StoreNotice({ store: { info, error, isPartial } }: { store: LiveStore }) {
  if (error !== undefined) {
    return (
      <p class="notice bad">
        <b>{info.name}</b> cannot be read: {error}
      </p>
    )
  }
  if (!isPartial) return null
  return (
    <p class="notice warn">
      <b>{info.name}</b> has more leases and waiters than this page reads. Some locks are missing, and no history is
      kept.
    </p>
  )
}

/** Tells a screen reader what cannot be missed: the connection, a store that is down, and a deadlock. */
function Announcer() {
  const { connection, stores } = useLive()
  const [text, setText] = useState('')
  const last = useRef('')
  const down = stores.filter(({ error }) => error !== undefined).map(({ info }) => info.name)
  let deadlocked = 0
  for (const { locks } of stores) for (const lock of locks.values()) if (lock.isDeadlocked) deadlocked += 1
  const now = [
    connection === 'lost' ? 'The connection is lost.' : '',
    down.length > 0 ? `${down.join(', ')} cannot be read.` : '',
    deadlocked > 0 ? `${counted(deadlocked, 'lock')} in a deadlock.` : '',
  ]
    .filter(Boolean)
    .join(' ')
  useEffect(() => {
    if (now === last.current) return
    last.current = now
    setText(now === '' ? 'All is well again.' : now)
  }, [now])
  return (
    <div class="hidden" role="status" aria-live="polite">
      {text}
    </div>
  )
}
