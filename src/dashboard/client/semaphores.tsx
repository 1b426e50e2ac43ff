import { SEMAPHORE } from '../wire.ts'
import { byName } from './elections.tsx'
import { count, seconds } from './format.ts'
import { type LiveStore, storeNow } from './live.ts'
import { Empty, holderOf, Level, Scroll, StoreText } from './parts.tsx'
import { lockHref } from './route.ts'

export function Semaphores({ stores }: { stores: LiveStore[] }) {
  return (
    <>
      {stores.map((store) => (
        <SemaphoreTable store={store} showsStore={stores.length > 1} />
      ))}
    </>
  )
}

function SemaphoreTable({ store, showsStore }: { store: LiveStore; showsStore: boolean }) {
  const found = [...store.locks.values()].filter(({ kind }) => kind === SEMAPHORE).sort(byName)
  const shown = found.slice(0, MAX_ROWS)
  const nowMs = storeNow(store)
  return (
    <section class="panel" aria-label={`Semaphores in ${store.info.name}`}>
      <h2>{showsStore ? store.info.name : 'Semaphores'}</h2>
      {shown.length === 0 ? (
        <Empty>
          {store.info.can?.semaphores === false
            ? `The ${store.info.driver} driver has no semaphores.`
            : 'No permit is held.'}
        </Empty>
      ) : (
        <Scroll label={`Permits in ${store.info.name}`}>
          <table class="plain">
            <thead>
              <tr>
                <th>Semaphore</th>
                <th>Permits</th>
                <th>Taken</th>
                <th>Holders</th>
                <th>Oldest</th>
                <th class="right">Waiting</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((lock) => (
                <tr>
                  <td>
                    <a href={lockHref(store.index, lock.name)}>
                      <StoreText text={lock.name} />
                    </a>
                  </td>
                  <td>
                    <Level used={lock.permits} of={lock.limit} label={`${lock.permits} of ${lock.limit} taken`} />
                  </td>
                  <td class="number">
                    {count(lock.permits)} of {count(lock.limit)}
                  </td>
                  <td>
                    <StoreText text={holderOf(lock)} />
                  </td>
                  <td class="number">{lock.since === 0 ? '' : seconds(nowMs - lock.since)}</td>
                  <td class="number right">{count(lock.waiters)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      {found.length > shown.length && <p class="note muted">and {count(found.length - shown.length)} more</p>}
    </section>
  )
}

const MAX_ROWS = 500
