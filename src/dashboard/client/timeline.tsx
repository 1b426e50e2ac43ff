import { useState } from 'preact/hooks'
import type { LockDetail, Span, SpanEnd } from '../wire.ts'
import { clockTime, duration, visible } from './format.ts'
import { Empty, Scroll, StoreText } from './parts.tsx'

const WINDOWS = [60_000, 120_000, 300_000, 900_000, 3_600_000]
const LANE = 30
const WIDTH = 1_000
const MAX_LANES = 14
const MAX_LISTED = 100

export const ENDS: Record<SpanEnd | 'held', string> = {
  held: 'held',
  passed: 'released to the next waiter',
  released: 'released',
  expired: 'expired: it was not renewed in time',
  'force-released': 'force-released',
  unknown: 'ended unseen: released or lost',
}

/** Who held the lock when: one lane for each holder, and a list that says the same in words. */
export function Timeline({ detail, nowMs }: { detail: LockDetail; nowMs: number }) {
  const { spans, gaps, watchedSince } = detail
  const firstMs = Math.min(watchedSince || nowMs, spans[0]?.from ?? nowMs)
  const fitting = WINDOWS.find((each) => each >= nowMs - Math.max(firstMs, nowMs - 3_600_000)) ?? 3_600_000
  const [chosen, choose] = useState<number>()
  const windowMs = chosen ?? fitting
  return (
    <section class="panel" aria-label="Timeline">
      <div class="panel-head">
        <h2>Timeline</h2>
        <Legend />
        <select
          aria-label="Time shown"
          value={windowMs}
          onChange={(event) => choose(Number(event.currentTarget.value))}
        >
          {WINDOWS.map((each) => (
            <option value={each}>{duration(each)}</option>
          ))}
        </select>
      </div>
      {spans.length === 0 ? (
        <Empty>It has not been held while this page was watched.</Empty>
      ) : (
        <>
          <Lanes spans={spans} gaps={gaps} watchedSince={watchedSince} fromMs={nowMs - windowMs} nowMs={nowMs} />
          <SpanList spans={spans} nowMs={nowMs} />
        </>
      )}
      <p class="note muted">
        The store is read twice a second while a page is open. A lease that began and ended between two readings is not
        in the timeline.
      </p>
    </section>
  )
}

function Legend() {
  return (
    <span class="legend" aria-hidden="true">
      <i class="passed" /> released to a waiter <i class="released" /> released <i class="expired" /> expired{' '}
      <i class="force-released" /> force-released
    </span>
  )
}

interface LanesProps extends Pick<LockDetail, 'spans' | 'gaps' | 'watchedSince'> {
  readonly fromMs: number
  readonly nowMs: number
}

function Lanes({ spans, gaps, watchedSince, fromMs, nowMs }: LanesProps) {
  const shown = spans.filter(({ to }) => (to ?? nowMs) > fromMs)
  const holders = [...new Set(shown.toReversed().map(({ holder }) => holder))].slice(0, MAX_LANES)
  const x = (ms: number): number => (Math.min(1, Math.max(0, (ms - fromMs) / (nowMs - fromMs))) * WIDTH) | 0
  const laneOf = (holder: string): number => holders.indexOf(holder)
  const height = holders.length * LANE
  const unknown: (readonly [number, number])[] = [[0, watchedSince], ...gaps]
  return (
    <div class="lanes">
      <div class="lane-names">
        {holders.map((holder) => (
          <StoreText text={holder} />
        ))}
      </div>
      <div class="lane-box">
        <svg
          viewBox={`0 0 ${WIDTH} ${height}`}
          preserveAspectRatio="none"
          role="img"
          aria-label="Who held the lock when. The list below says the same."
          style={{ height: `${height}px` }}
        >
          {holders.map((_, lane) => (
            <line class="lane-line" x1={0} x2={WIDTH} y1={lane * LANE + LANE / 2} y2={lane * LANE + LANE / 2} />
          ))}
          {unknown
            .filter(([, to]) => to > fromMs)
            .map(([from, to]) => (
              <rect class="gap" x={x(from)} width={Math.max(0, x(to) - x(from))} y={0} height={height} />
            ))}
          <HandOffs spans={shown} laneOf={laneOf} x={x} />
          {shown.map((span) => {
            const lane = laneOf(span.holder)
            if (lane === -1) return null
            const left = x(span.from)
            const width = Math.max(2, x(span.to ?? nowMs) - left)
            return (
              <rect class={`span ${span.end ?? 'held'}`} x={left} width={width} y={lane * LANE + 7} height={LANE - 14}>
                <title>{sentenceOf(span, nowMs)}</title>
              </rect>
            )
          })}
        </svg>
        {shown.map((span) => {
          const lane = laneOf(span.holder)
          const isMarked = span.end === 'expired' || span.end === 'force-released'
          if (lane === -1 || !isMarked || span.to === undefined) return null
          return (
            <i
              class={`mark ${span.end}`}
              aria-hidden="true"
              style={{ left: `${(x(span.to) / WIDTH) * 100}%`, top: `${lane * LANE + LANE / 2}px` }}
            >
              {span.end === 'expired' ? '✕' : '⚡'}
            </i>
          )
        })}
        <div class="axis" aria-hidden="true">
          <span>{duration(nowMs - fromMs)} ago</span>
          <span>{duration((nowMs - fromMs) / 2)}</span>
          <span>now</span>
        </div>
      </div>
    </div>
  )
}

/** A line from each lease to the one that followed it at once. */
function HandOffs({
  spans,
  laneOf,
  x,
}: {
  spans: readonly Span[]
  laneOf(holder: string): number
  x(ms: number): number
}) {
  return (
    <>
      {spans.map((span, index) => {
        const next = spans[index + 1]
        if (span.to === undefined || next === undefined || next.from - span.to > FOLLOWS_MS) return null
        const [lane, nextLane] = [laneOf(span.holder), laneOf(next.holder)]
        if (lane === -1 || nextLane === -1 || lane === nextLane) return null
        const at = x(next.from)
        return <line class="hand-off" x1={at} x2={at} y1={lane * LANE + LANE / 2} y2={nextLane * LANE + LANE / 2} />
      })}
    </>
  )
}

const FOLLOWS_MS = 1_500

function SpanList({ spans, nowMs }: { spans: readonly Span[]; nowMs: number }) {
  const listed = spans.toReversed().slice(0, MAX_LISTED)
  return (
    <details open={spans.length <= 12}>
      <summary>In words</summary>
      <Scroll label="In words">
        <table class="plain spans" aria-label="History">
          <thead>
            <tr>
              <th>From</th>
              <th>Holder</th>
              <th>Held for</th>
              <th>Waited</th>
              <th>How it ended</th>
              <th>Token</th>
            </tr>
          </thead>
          <tbody>
            {listed.map((span) => (
              <tr data-end={span.end ?? 'held'}>
                <td class="number">{clockTime(span.from)}</td>
                <td>
                  <StoreText text={span.holder} />
                </td>
                <td class="number">{duration((span.to ?? nowMs) - span.from)}</td>
                <td class="number">{span.waited === undefined ? '' : duration(span.waited)}</td>
                <td>
                  <i class={`key ${span.end ?? 'held'}`} aria-hidden="true" />
                  {ENDS[span.end ?? 'held']}
                  {span.by !== undefined && ` (${visible(span.by)}${span.reason ? `: ${visible(span.reason)}` : ''})`}
                </td>
                <td class="number muted">{span.token || ''}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </details>
  )
}

const sentenceOf = (span: Span, nowMs: number): string =>
  `${visible(span.holder)}, ${clockTime(span.from)}, for ${duration((span.to ?? nowMs) - span.from)}: ${ENDS[span.end ?? 'held']}`
