import type { Span } from '../wire.ts'
import { counted, duration } from './format.ts'
import { Empty } from './parts.tsx'

/** How long claims waited for the lock, and how long it was held. */
export function Distributions({ spans, nowMs }: { spans: readonly Span[]; nowMs: number }) {
  const waits = spans.flatMap(({ waited }) => waited ?? [])
  const holds = spans.flatMap(({ from, to, end }) =>
    to === undefined || end === 'unknown' ? [] : Math.min(to, nowMs) - from,
  )
  return (
    <div class="columns">
      <Distribution title="Time waited" values={waits} none="No claim was seen waiting." />
      <Distribution title="Time held" values={holds} none="No lease has ended yet." />
    </div>
  )
}

const STEPS: readonly [number, string][] = [
  [100, '< 0.1 s'],
  [300, '0.3 s'],
  [1_000, '1 s'],
  [3_000, '3 s'],
  [10_000, '10 s'],
  [30_000, '30 s'],
  [60_000, '1 m'],
  [300_000, '5 m'],
  [Number.POSITIVE_INFINITY, 'more'],
]

function Distribution({ title, values, none }: { title: string; values: number[]; none: string }) {
  const counts = STEPS.map(([most], index) => {
    const least = STEPS[index - 1]?.[0] ?? Number.NEGATIVE_INFINITY
    return values.filter((each) => each >= least && each < most).length
  })
  const highest = Math.max(1, ...counts)
  const sorted = values.toSorted((a, b) => a - b)
  const at = (part: number): string =>
    duration(sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? 0)
  return (
    <section class="panel" aria-label={title}>
      <h2>
        {title} <span class="muted">{values.length > 0 && counted(values.length, 'lease')}</span>
      </h2>
      {values.length === 0 ? (
        <Empty>{none}</Empty>
      ) : (
        <>
          <div class="histogram" role="img" aria-label={`Half within ${at(0.5)}, 95 of 100 within ${at(0.95)}`}>
            {STEPS.map(([, label], index) => (
              <span>
                <b>{counts[index] || ''}</b>
                <i style={{ height: `${((counts[index] ?? 0) / highest) * 64}px` }} />
                <small>{label}</small>
              </span>
            ))}
          </div>
          <p class="note">
            <span class="muted">median</span> {at(0.5)} <span class="muted">· 95 %</span> {at(0.95)}{' '}
            <span class="muted">· longest</span> {at(1)}
          </p>
        </>
      )}
    </section>
  )
}
