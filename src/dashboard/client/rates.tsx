import type { RateDetail, RateList } from '../wire.ts'
import { apiUrl, useFetched } from './api.ts'
import { count, duration } from './format.ts'
import { type LiveStore, storeNow } from './live.ts'
import { Empty, Level, Scroll, StoreText } from './parts.tsx'

export function Rates({ stores }: { stores: LiveStore[] }) {
  return (
    <>
      {stores.map((store) => (
        <section class="panel" aria-label={`Rate limits in ${store.info.name}`}>
          <h2>{stores.length > 1 ? store.info.name : 'Rate limits'}</h2>
          <StoreRates store={store} />
        </section>
      ))}
    </>
  )
}

function StoreRates({ store }: { store: LiveStore }) {
  const { can, driver } = store.info
  if (can?.rates === 'no') return <Empty>The {driver} driver has no rate limits.</Empty>
  if (can?.rates === 'unlisted') return <Empty>The {driver} driver cannot list its rate limits.</Empty>
  return <ListedRates store={store} />
}

function ListedRates({ store }: { store: LiveStore }) {
  const version = Math.floor(storeNow(store) / REFRESH_MS)
  const { value, error } = useFetched<RateList>(apiUrl('rates', { store: store.index }), version)
  if (error) return <Empty>{error}</Empty>
  if (value === undefined) return <Empty>Reading …</Empty>
  if (value.rates.length === 0) return <Empty>Nothing of any limit is in use.</Empty>
  return (
    <>
      <Scroll label={`Levels in ${store.info.name}`}>
        <table class="plain">
          <thead>
            <tr>
              <th>Key</th>
              <th>Limit</th>
              <th>In use</th>
              <th class="right">Left</th>
              <th class="right">Full again in</th>
            </tr>
          </thead>
          <tbody>
            {value.rates.map((rate) => (
              <RateRow rate={rate} />
            ))}
          </tbody>
        </table>
      </Scroll>
      {!value.complete && <p class="note muted">There are more than the {count(value.rates.length)} shown.</p>}
    </>
  )
}

function RateRow({ rate: { name, limit, periodMs, burst, usedMs, blockedMs } }: { rate: RateDetail }) {
  const unitMs = periodMs / limit
  const used = Math.min(burst, Math.ceil(usedMs / unitMs - 1e-6))
  return (
    <tr>
      <td>
        <StoreText text={name} />
        {blockedMs > 0 && <em class="tag bad">blocked for {duration(blockedMs)}</em>}
      </td>
      <td>
        {count(limit)} per {duration(periodMs)}
        {burst !== limit && <span class="muted">, burst {count(burst)}</span>}
      </td>
      <td>
        <Level used={used} of={burst} label={`${used} of ${burst} in use`} />
      </td>
      <td class="number right">{blockedMs > 0 ? 0 : count(burst - used)}</td>
      <td class="number right">{duration(Math.max(usedMs, blockedMs))}</td>
    </tr>
  )
}

const REFRESH_MS = 1_000
