import { count, counted, seconds } from './format.ts'
import { type LiveStore, type Lock, storeNow } from './live.ts'
import { Empty, Scroll, StoreText, TimeLeft } from './parts.tsx'
import { lockHref } from './route.ts'

export function Elections({ stores }: { stores: LiveStore[] }) {
  return (
    <>
      {stores.map((store) => (
        <ElectionTable store={store} showsStore={stores.length > 1} />
      ))}
      <p class="muted">
        A leader holds a lock. It is recognised by the value that it publishes. An election without a value looks like a
        lock: name its prefix with <code>--elections</code>, or <code>electionPrefixes</code>.
      </p>
    </>
  )
}

function ElectionTable({ store, showsStore }: { store: LiveStore; showsStore: boolean }) {
  const elections = [...store.locks.values()]
    .filter(({ isElection }) => isElection)
    .sort(byName)
    .slice(0, MAX_ROWS)
  const nowMs = storeNow(store)
  const publishes = store.info.can?.metadata !== false
  return (
    <section class="panel" aria-label={`Elections in ${store.info.name}`}>
      <h2>{showsStore ? store.info.name : 'Leaders'}</h2>
      {elections.length === 0 ? (
        <Empty>{publishes ? 'No leader is known.' : 'Leaders cannot publish a value in this store.'}</Empty>
      ) : (
        <Scroll label={`Leaders in ${store.info.name}`}>
          <table class="plain">
            <thead>
              <tr>
                <th>Election</th>
                <th>Leader</th>
                <th>Published value</th>
                <th>Term</th>
                <th>Leads for</th>
                <th>Time left</th>
                <th class="right">Candidates</th>
              </tr>
            </thead>
            <tbody>
              {elections.map((lock) => (
                <tr>
                  <td>
                    <a href={lockHref(store.index, lock.name)}>
                      <StoreText text={lock.name} />
                    </a>
                  </td>
                  <td>
                    <StoreText text={lock.holder} />
                  </td>
                  <td>{lock.value === '' ? <span class="muted">none</span> : <StoreText text={lock.value} />}</td>
                  <td class="number">{lock.term}</td>
                  <td class="number">{lock.since === 0 ? 'unknown' : seconds(nowMs - lock.since)}</td>
                  <td class="left">
                    <TimeLeft lock={lock} nowMs={nowMs} />
                  </td>
                  <td class="number right">{count(lock.waiters)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      {elections.length === MAX_ROWS && <p class="note muted">Only the first {counted(MAX_ROWS, 'election')}.</p>}
    </section>
  )
}

export const byName = (a: Lock, b: Lock): number => (a.name < b.name ? -1 : 1)

/** These tables render all of their rows. */
const MAX_ROWS = 500
