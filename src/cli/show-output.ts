import type { Cycle } from '../core/deadlock/find.ts'
import type { LeaseRecord } from '../core/driver.ts'
import type { BreakRecord } from '../primitives/lock/break-record.ts'
import type { Style } from './colour.ts'
import { durationText } from './duration.ts'
import type { Seen } from './store.ts'
import { tableOf } from './table.ts'
import { printable, printableJson } from './text.ts'

/** What is known of one lock. */
export interface Shown extends Seen {
  readonly lockName: string
  /** What the holders themselves wait for, in the order of the leases. */
  readonly holdersWaitFor: readonly (readonly Wait[])[]
  /** Claims that wait for each other, and of which one has to give up. The lock is part of it. */
  readonly deadlock?: Cycle
  /** The last ones first. */
  readonly breaks: readonly BreakRecord[]
  /** False if the lock has more leases and waiters than were read. */
  readonly complete: boolean
}

export interface Wait {
  readonly lockName: string
  readonly sinceMs: number
}

/** For people: the holders, the queue in its order, a deadlock, and earlier breaks. */
export function shownLines(
  { lockName, leases, waiters, holdersWaitFor, deadlock, breaks, complete }: Shown,
  { nowMs, width }: { nowMs: number; width: number },
): Line[] {
  const lines: string[] = []
  if (leases.length === 0) lines.push('', 'it is free')
  leases.forEach((lease, at) => {
    lines.push('', ...holderLines(lease, holdersWaitFor[at] ?? [], nowMs))
  })
  if (waiters.length > 0) {
    const rows = waiters.map(({ holderId, mode, permits, waitingSinceMs }, at) => [
      `${at + 1}`,
      printable(holderId),
      permits > 1 ? `${mode}, ${permits} permits` : mode,
      durationText(nowMs - waitingSinceMs),
    ])
    const columns = [{ title: 'QUEUE' }, { title: 'WAITER', shrinks: true }, { title: 'MODE' }, { title: 'WAITING' }]
    lines.push('', ...tableOf(columns, rows, width))
  }
  if (deadlock !== undefined) {
    lines.push('', DEADLOCK)
    for (const { waiter, blocker } of deadlock) {
      const how = 'fencingToken' in blocker ? 'which is held by' : 'behind'
      lines.push(printable(`  ${waiter.holderId} waits for ${waiter.lockName}, ${how} ${blocker.holderId}`))
    }
  }
  if (breaks.length > 0) lines.push('', 'broken before')
  for (const { by, reason, at, ended } of breaks) {
    const ago = durationText(nowMs - at.getTime())
    lines.push(printable(`  ${ago} ago by ${by}: ${reason} (held by ${ended.join(', ')})`))
  }
  if (!complete) lines.push('', `only the first ${leases.length + waiters.length} holders and waiters are shown`)
  return [
    { text: printable(lockName), style: 'bold' },
    ...lines.map((text): Line => (text === DEADLOCK ? { text, style: 'red' } : { text })),
  ]
}

/** A line of text, and how it is drawn on a terminal. */
export interface Line {
  readonly text: string
  readonly style?: Style
}

const DEADLOCK = 'deadlock: none of these can go on until one gives up'

function holderLines(lease: LeaseRecord, waits: readonly Wait[], nowMs: number): string[] {
  const { holderId, mode, permits, limit, acquiredAtMs, expiresAtMs, fencingToken, metadata } = lease
  const share = limit === undefined ? mode : `${permits} of ${limit} permits`
  const fields: [string, string][] = [['held by', `${holderId} (${share})`]]
  if (acquiredAtMs > 0) fields.push(['since', `${durationText(nowMs - acquiredAtMs)} (${time(acquiredAtMs)})`])
  if (expiresAtMs === undefined) fields.push(['ends', 'with its session'])
  else fields.push(['ends in', `${durationText(expiresAtMs - nowMs)}, unless it is renewed`])
  if (fencingToken > 0) fields.push(['token', `${fencingToken}`])
  if (metadata !== undefined) fields.push(['metadata', JSON.stringify(metadata)])
  for (const { lockName, sinceMs } of waits) {
    fields.push(['waits for', `${lockName}, for ${durationText(nowMs - sinceMs)}`])
  }
  return fields.map(([name, text]) => `${name.padEnd(11)}${printable(text)}`)
}

/** One object. Times are absolute. */
export function shownJson({ lockName, leases, waiters, holdersWaitFor, deadlock, breaks }: Shown): string {
  const value = {
    lockName,
    leases: leases.map(({ lockName: _, acquiredAtMs, expiresAtMs, ...lease }, at) => ({
      ...lease,
      ...(acquiredAtMs > 0 && { acquiredAt: time(acquiredAtMs) }),
      ...(expiresAtMs !== undefined && { expiresAt: time(expiresAtMs) }),
      waitsFor: (holdersWaitFor[at] ?? []).map((wait) => ({ lockName: wait.lockName, since: time(wait.sinceMs) })),
    })),
    waiters: waiters.map(({ lockName: _, waitingSinceMs, ...waiter }) => ({
      ...waiter,
      waitingSince: time(waitingSinceMs),
    })),
    ...(deadlock && {
      deadlock: deadlock.map(({ waiter, blocker }) => ({
        holderId: waiter.holderId,
        lockName: waiter.lockName,
        heldBy: blocker.holderId,
      })),
    }),
    breaks,
  }
  return `${printableJson(value)}\n`
}

const time = (ms: number): string => new Date(ms).toISOString()
