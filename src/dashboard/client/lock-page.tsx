import { useState } from 'preact/hooks'
import type { LeaseDetail, LockDetail } from '../wire.ts'
import { apiUrl, useFetched } from './api.ts'
import { Distributions } from './distributions.tsx'
import { ForceRelease } from './force-release.tsx'
import { clockTime, count, counted, duration, seconds, visible } from './format.ts'
import { type LiveStore, type Lock, live, storeNow } from './live.ts'
import { ago, Empty, LeaseBar, StoreText } from './parts.tsx'
import { lockHref, tabHref } from './route.ts'
import { Timeline } from './timeline.tsx'

export function LockPage({ store, name }: { store: LiveStore | undefined; name: string }) {
  const lock = store && findLock(store, name)
  // The list says when something about the lock has changed. Otherwise the page asks from time to time.
  const version = `${lock && [lock.id, lock.since, lock.end, lock.waiters, lock.holder, lock.permits].join()} ${
    store && Math.floor(storeNow(store) / REFRESH_MS)
  }`
  const { value: detail, error } = useFetched<LockDetail>(
    apiUrl('lock', { store: store?.index ?? 0, name }),
    store === undefined ? '' : version,
  )
  const [isForcing, setForcing] = useState(false)
  if (store === undefined) return <Empty>{live.stores.length > 0 ? 'There is no such store.' : 'Connecting …'}</Empty>
  const canForce = live.welcome.actions && store.info.can?.force === true && (detail?.leases.length ?? 0) > 0
  return (
    <>
      <div class="lock-head">
        <a href={tabHref('locks')} class="back">
          ← Locks
        </a>
        <h1>
          <StoreText text={name} />
        </h1>
        {detail && <StateTag detail={detail} />}
        {live.stores.length > 1 && <span class="muted">{store.info.name}</span>}
        {canForce && (
          <button type="button" class="danger" onClick={() => setForcing(true)}>
            Force release…
          </button>
        )}
      </div>
      {error && <p class="notice bad">{error}</p>}
      {detail && (
        <>
          {detail.cycle.length > 0 && <DeadlockNotice detail={detail} />}
          <div class="columns">
            <Holders store={store} detail={detail} lock={lock} />
            <Queue store={store} detail={detail} />
          </div>
          <Timeline detail={detail} nowMs={storeNow(store)} />
          <Distributions spans={detail.spans} nowMs={detail.now} />
          {detail.forcedReleases.length > 0 && <ForcedReleases detail={detail} />}
          {isForcing && <ForceRelease store={store} detail={detail} close={() => setForcing(false)} />}
        </>
      )}
    </>
  )
}

const REFRESH_MS = 2_000

function findLock(store: LiveStore, name: string): Lock | undefined {
  for (const lock of store.locks.values()) if (lock.name === name) return lock
  return undefined
}

function StateTag({ detail: { leases, waiterCount, cycle } }: { detail: LockDetail }) {
  if (cycle.length > 0) return <em class="tag bad">deadlock</em>
  if (leases.length === 0) return <em class="tag">free</em>
  return waiterCount > 0 ? <em class="tag warn">contended</em> : <em class="tag">held</em>
}

export function DeadlockNotice({ detail: { cycle } }: { detail: Pick<LockDetail, 'cycle'> }) {
  return (
    <div class="notice bad" role="alert">
      <b>Deadlock.</b> None of these can go on until one of them gives up:
      <ul>
        {cycle.map(({ waiter, lock, blocker }) => (
          <li>
            <StoreText text={waiter} /> waits for <StoreText text={lock} />, behind <StoreText text={blocker} />
          </li>
        ))}
      </ul>
    </div>
  )
}

function Holders({ store, detail, lock }: { store: LiveStore; detail: LockDetail; lock: Lock | undefined }) {
  const { leases } = detail
  return (
    <section class="panel" aria-label="Holders">
      <h2>{leases.length === 1 ? 'Holder' : counted(leases.length, 'holder')}</h2>
      {leases.length === 0 && <Empty>It is free.</Empty>}
      {leases.map((lease) => (
        <Holder store={store} lease={lease} longestMs={lock?.longest ?? 0} />
      ))}
      {leases.length > 0 && store.info.can?.metadata === false && (
        <p class="note muted">This store keeps no metadata with a lock.</p>
      )}
    </section>
  )
}

function Holder({ store, lease, longestMs }: { store: LiveStore; lease: LeaseDetail; longestMs: number }) {
  const nowMs = storeNow(store)
  const { holder, shared, permits, limit, since, end, token, metadata, waitsFor } = lease
  return (
    <div class="holder-card">
      <div class="holder-name">
        <StoreText text={holder} />
        <span class="muted">
          {limit === undefined ? (shared ? 'shared' : 'exclusive') : `${permits} of ${limit} permits`}
        </span>
      </div>
      <dl>
        <dt>Held for</dt>
        <dd>{since === undefined ? 'unknown' : `${seconds(nowMs - since)}, since ${clockTime(since)}`}</dd>
        <dt>Time left</dt>
        <dd>
          {end === undefined ? (
            'as long as its session'
          ) : (
            <span class="left">
              <LeaseBar leftMs={end - nowMs} longestMs={Math.max(longestMs, end - nowMs)} />
              <span class="number">{seconds(end - nowMs)}</span>
            </span>
          )}
        </dd>
        <dt>Fencing token</dt>
        <dd class="number">{token > 0 ? token : 'none: another client took it'}</dd>
        {waitsFor.length > 0 && (
          <>
            <dt>Waits for</dt>
            <dd>
              {waitsFor.map((name) => (
                <a class="inline" href={lockHref(store.index, name)}>
                  <StoreText text={name} />
                </a>
              ))}
            </dd>
          </>
        )}
      </dl>
      {metadata !== undefined && metadata !== '{}' && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: long metadata scrolls, and a keyboard must reach it
        <pre tabIndex={0}>{visible(metadata)}</pre>
      )}
    </div>
  )
}

function Queue({ store, detail: { waiters, waiterCount } }: { store: LiveStore; detail: LockDetail }) {
  const nowMs = storeNow(store)
  const shown = waiters.slice(0, MAX_SHOWN)
  return (
    <section class="panel" aria-label="Queue">
      <h2>
        Queue <span class="muted">{count(waiterCount)}</span>
      </h2>
      {store.info.can?.waiters === false && waiterCount === 0 ? (
        <Empty>This store does not show who waits.</Empty>
      ) : waiterCount === 0 ? (
        <Empty>No claim waits.</Empty>
      ) : (
        <ol class="queue">
          {shown.map(({ holder, shared, permits, since }) => (
            <li>
              <StoreText text={holder} />
              <span class="muted">
                {shared ? 'shared' : 'exclusive'}
                {permits > 1 && `, ${permits} permits`}
              </span>
              <span class="number">{seconds(nowMs - since)}</span>
            </li>
          ))}
        </ol>
      )}
      {waiterCount > shown.length && <p class="note muted">and {count(waiterCount - shown.length)} more</p>}
    </section>
  )
}

const MAX_SHOWN = 50

function ForcedReleases({ detail: { forcedReleases, now } }: { detail: LockDetail }) {
  return (
    <section class="panel" aria-label="Forced releases">
      <h2>Forced releases</h2>
      <ul class="forced-releases">
        {forcedReleases.map(({ by, reason, at, ended }) => (
          <li>
            <span class="muted">{ago(Math.max(0, now - at))}</span> <StoreText text={by} /> ended the lease of{' '}
            <StoreText text={ended.join(', ')} />: {visible(reason)}
          </li>
        ))}
      </ul>
      <p class="note muted">Kept for {duration(30 * 86_400_000)}.</p>
    </section>
  )
}
