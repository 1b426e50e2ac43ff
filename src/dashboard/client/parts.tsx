import type { ComponentChildren } from 'preact'
import { EXCLUSIVE, SEMAPHORE } from '../wire.ts'
import { duration, seconds, visible } from './format.ts'
import type { Lock } from './live.ts'

/** Text from the store: as it is, in its own direction, and with everything visible. */
export function StoreText({ text, class: name = '' }: { text: string; class?: string }) {
  return (
    <bdi class={name} title={visible(text)}>
      {visible(text)}
    </bdi>
  )
}

/** How much of a lease is left. It drains, and is full again after each renewal. */
export function LeaseBar({ leftMs, longestMs }: { leftMs: number; longestMs: number }) {
  const part = longestMs > 0 ? Math.min(1, Math.max(0, leftMs / longestMs)) : 0
  const tone = part < 0.15 ? 'bad' : part < 0.4 ? 'warn' : 'good'
  return (
    <span class="bar" aria-hidden="true">
      <i class={tone} style={{ transform: `scaleX(${part.toFixed(3)})` }} />
    </span>
  )
}

export function TimeLeft({ lock, nowMs }: { lock: Lock; nowMs: number }) {
  if (lock.holders === 0) return <span class="muted">free</span>
  if (lock.end === 0) return <span class="muted">with its session</span>
  const leftMs = lock.end - nowMs
  return (
    <span class="left">
      <LeaseBar leftMs={leftMs} longestMs={lock.longest} />
      <span class="number">{seconds(leftMs)}</span>
    </span>
  )
}

export const modeOf = ({ kind, permits, limit, holders }: Lock): string => {
  if (kind === EXCLUSIVE) return 'exclusive'
  if (kind === SEMAPHORE) return `${permits} of ${limit} permits`
  return holders > 1 ? `shared by ${holders}` : 'shared'
}

export const holderOf = ({ holder, holders }: Lock): string =>
  holders > 1 ? `${holder} and ${holders - 1} more` : holder

export const ageOf = ({ since, holders }: Lock, nowMs: number): string =>
  holders === 0 ? '' : since === 0 ? 'unknown' : seconds(nowMs - since)

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>
}

/** A wide table or graph. On a narrow page it scrolls sideways, and a keyboard must reach it for that. */
export function Scroll({ label, class: name = '', children }: ScrollProps) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: as the comment above says
    <div class={`scroll ${name}`} role="region" aria-label={label} tabIndex={0}>
      {children}
    </div>
  )
}

interface ScrollProps {
  readonly label: string
  readonly class?: string
  readonly children: ComponentChildren
}

/** What of a limited amount is taken. Few units are shown one by one. */
export function Level({ used, of, label }: { used: number; of: number; label: string }) {
  if (of <= MAX_PIPS) {
    return (
      <span class={used >= of ? 'pips full' : 'pips'} role="img" aria-label={label}>
        {Array.from({ length: of }, (_, at) => (
          <i class={at < used ? 'taken' : ''} />
        ))}
      </span>
    )
  }
  const part = of > 0 ? Math.min(1, used / of) : 0
  return (
    <span class="bar wide" role="img" aria-label={label}>
      <i class={part >= 1 ? 'bad' : part > 0.8 ? 'warn' : 'good'} style={{ transform: `scaleX(${part.toFixed(3)})` }} />
    </span>
  )
}

const MAX_PIPS = 20

export const ago = (ms: number): string => `${duration(ms)} ago`
