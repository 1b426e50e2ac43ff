import { describe, expect, test } from 'vitest'
import { keysIn } from '../../src/cli/screen.ts'
import type { Seen } from '../../src/cli/store.ts'
import { colourful, plain, textWidth } from '../../src/cli/text.ts'
import { frameOf, pageOf } from '../../src/cli/top-frame.ts'
import { type History, NO_HISTORY, observed, rateOf, rowsFrom } from '../../src/cli/top-locks.ts'
import { firstState, press, type TopState, withDetail, withOutage, withRows } from '../../src/cli/top-state.ts'
import type { LeaseRecord, WaiterRecord } from '../../src/core/driver.ts'

const NOW_MS = Date.parse('2026-01-05T03:00:00Z')
const size = { columns: 80, rows: 24, nowMs: NOW_MS, paint: plain }

describe('hand-offs of holdfast top', () => {
  test('a lease that follows another one counts, and a renewed, a new and an ended one do not', () => {
    const first = observed(NO_HISTORY, seen([lease('a', '1'), lease('b', '1'), lease('c', '1')]), 0)
    const second = observed(first, seen([lease('a', '2'), lease('b', '1'), lease('d', '1')]), 1_000)
    expect(rateOf(second)).toEqual({ perSecond: 1, isAtLeast: true })
    expect(rateOf(second, 'a')).toEqual({ perSecond: 1, isAtLeast: true })
    for (const name of ['b', 'c', 'd']) expect(rateOf(second, name).perSecond).toBe(0)
  })

  test('a lock that had another holder at every look may have had more of them', () => {
    const busy = [1, 2, 3].reduce<History>(
      (past, at) => observed(past, seen([lease('a', `${at}`)]), at * 1_000),
      NO_HISTORY,
    )
    expect(rateOf(busy, 'a')).toEqual({ perSecond: 1, isAtLeast: true })
    expect(rateOf(observed(busy, seen([lease('a', '3')]), 4_000), 'a')).toMatchObject({ isAtLeast: false })
  })

  test('a semaphore that gains a holder hands nothing off', () => {
    const one = observed(NO_HISTORY, seen([lease('s', '1')]), 0)
    expect(rateOf(observed(one, seen([lease('s', '1'), lease('s', '2')]), 1_000)).perSecond).toBe(0)
  })

  test('the history is bounded', () => {
    let history = NO_HISTORY
    for (let at = 0; at < 100; at += 1) history = observed(history, seen([lease('a', `${at}`)]), at * 1_000)
    expect(history.looks.length).toBeLessThan(20)
  })
})

describe('the keys of holdfast top', () => {
  test('arrows, pages, Enter and Escape are known, and unknown sequences are no keys', () => {
    expect(keysIn('\u001b[A\u001bOBk\r\u001b\u007f')).toEqual(['up', 'down', 'k', 'enter', 'escape', 'backspace'])
    expect(keysIn('\u001b[5~\u001b[1;5Aé😀')).toEqual(['pageup', 'é', '😀'])
  })

  test('the selection stays on its lock when the order changes', () => {
    const state = presses(example(), ['down', 'down', 'n'])
    expect(state.arranged.map(({ lockName }) => lockName)).toEqual(['cron:a', 'old', 'report'])
    expect(state.arranged[state.cursor]?.lockName).toBe('old')
  })

  test('sorts by waiters, longest wait, age, hand-offs and name', () => {
    const orderBy = (key: string) => presses(example(), [key]).arranged.map(({ lockName }) => lockName)
    expect(orderBy('w')).toEqual(['report', 'cron:a', 'old'])
    expect(orderBy('l')).toEqual(['cron:a', 'report', 'old'])
    expect(orderBy('a')).toEqual(['old', 'cron:a', 'report'])
    expect(orderBy('h')).toEqual(['report', 'cron:a', 'old'])
    expect(orderBy('n')).toEqual(['cron:a', 'old', 'report'])
  })

  test('filters by name and holder while it is typed, also by q', () => {
    const typed = presses(example(), ['/', 'W', 'E', 'b'])
    expect(typed.arranged.map(({ lockName }) => lockName)).toEqual(['report', 'cron:a'])
    expect(presses(typed, ['q']).filter).toBe('WEbq')
    expect(presses(typed, ['escape']).arranged).toHaveLength(3)
    expect(presses(typed, ['backspace', 'enter'])).toMatchObject({ filter: 'WE', view: 'list' })
  })

  test('Enter inspects, q goes back, and q again quits', () => {
    const inspected = presses(example(), ['enter'])
    expect(inspected.detail?.lockName).toBe('report')
    const back = presses(inspected, ['q'])
    expect(back).toMatchObject({ view: 'list' })
    expect(press(back, 'q', pageOf(back, size))).toBeUndefined()
  })
})

describe('the frame of holdfast top', () => {
  test('shows a lock with holder, age, time left, waiters, longest wait and hand-offs', () => {
    const frame = frameOf(example(), size)
    expect(frame[1]).toBe('3 locks held, 3 waiters, the longest for 1m 5s, 1.0+ hand-offs/s')
    expect(frame[3]).toMatch(/^LOCK +HOLDER +AGE +LEFT +WAITERS↓ +LONGEST +HAND\/S$/)
    expect(frame[4]).toMatch(/report +web-2 \+1 +4s +26s +2 +3s +1\.0\+ /)
    expect(frame[5]).toMatch(/^cron:a +web-1 +3m 12s +28s +1 +1m 5s$/)
    expect(frame[6]).toMatch(/^old +batch +2h 5m +no end +0$/)
  })

  test.each([
    [80, 24],
    [200, 50],
    [40, 10],
    [10, 3],
    [1, 1],
  ])('has a line for each row of %i × %i, and none is wider', (columns, rows) => {
    const locks = Array.from({ length: 10_000 }, (_, at) => lease(`${'wide 東京 😀 '.repeat(10)}${at}`, '1'))
    const many = stateOf(seen(locks))
    const frames = [many, presses(many, ['G']), presses(many, ['?']), presses(many, ['/', 'x'.repeat(9)])]
    for (const state of [...frames, withOutage(many, 'gone '.repeat(99), NOW_MS)]) {
      const frame = frameOf(state, { ...size, columns, rows })
      expect(frame).toHaveLength(rows)
      // biome-ignore lint/suspicious/noControlCharactersInRegex: the selected row is shown by codes
      const texts = frame.map((line) => line.replaceAll(/\u001b\[\d+m/g, ''))
      expect(Math.max(...texts.map(textWidth))).toBeLessThanOrEqual(columns)
    }
  })

  test('text of other clients cannot control the terminal', () => {
    const evil = '\u001b[2J\u009b31m\u202e\u001b]0;x\u0007\r\n\u{e0041}'
    const hostile = { ...lease(evil, '1'), holderId: evil, metadata: { [evil]: evil } }
    const state = { ...stateOf(seen([hostile])), place: evil, prefix: evil, filter: evil }
    const shown = { ...seen([hostile]), lockName: evil, holdersWaitFor: [], forcedReleases: [], complete: true }
    const inspected = withDetail(presses(stateOf(seen([hostile])), ['enter']), shown)
    const views = [state, { ...state, view: 'filter' as const }, inspected, withOutage(inspected, evil, NOW_MS)]
    for (const frame of views.map((each) => frameOf(each, { ...size, paint: colourful }))) {
      // biome-ignore lint/suspicious/noControlCharactersInRegex: it looks for control characters
      const text = frame.join('').replaceAll(/\u001b\[\d+m/g, '')
      expect(text).toContain('\\u001b[2J\\u009b31m')
      expect(text).not.toMatch(/[\p{Cc}\p{Cf}]/u)
    }
  })

  test('says that it shows only a part, and since when the store does not answer', () => {
    const part = withRows(example(), { ...example(), isComplete: false })
    expect(frameOf(part, size)[2]).toBe('only 3 locks, there are more: use holdfast top PREFIX')
    const away = withOutage(withOutage(part, 'first', NOW_MS - 65_000), 'connection refused', NOW_MS)
    expect(frameOf(away, size)[1]).toMatch(/^the store does not answer since \d\d:\d\d:55 \(1m 5s\); trying again$/)
    expect(frameOf(away, size)[2]).toBe('connection refused')
    expect(frameOf(withRows(away, example()), size)[1]).toMatch(/^3 locks held/)
  })

  test('a long inspection can be scrolled to its end and no further', () => {
    const waiters = Array.from({ length: 100 }, (_, at) => waiter('report', `w${at}`, 1_000))
    const shown = { ...seen([], waiters), lockName: 'report', holdersWaitFor: [], forcedReleases: [], complete: false }
    const state = presses(withDetail(presses(example(), ['enter']), shown), ['end', 'pagedown'])
    expect(frameOf(state, size).at(-2)).toBe('only the first 100 holders and waiters are shown')
    expect(frameOf(presses(state, ['up']), size).at(-2)).toBe('')
  })
})

/** Three locks, and a hand-off of one of them. */
function example(): TopState {
  const now = seen(
    [
      lease('cron:a', '1', { holderId: 'web-1', acquiredAtMs: NOW_MS - 192_000, expiresAtMs: NOW_MS + 28_000 }),
      lease('report', '2', { holderId: 'web-3', acquiredAtMs: NOW_MS - 1_000, expiresAtMs: NOW_MS + 26_000 }),
      lease('report', '3', { holderId: 'web-2', acquiredAtMs: NOW_MS - 4_000, expiresAtMs: NOW_MS + 20_000 }),
      lease('old', '1', { holderId: 'batch', acquiredAtMs: NOW_MS - 7_500_000 }),
    ],
    [waiter('cron:a', 'w1', 65_000), waiter('report', 'w2', 3_000), waiter('report', 'w3', 2_000)],
  )
  return stateOf(now, seen([lease('report', '1'), lease('report', '2')]))
}

function stateOf(now: Seen, before: Seen = seen([])): TopState {
  const history = observed(observed(NO_HISTORY, before, 0), now, 1_000)
  const read = { rows: rowsFrom(now, history), handOffs: rateOf(history), isComplete: true }
  return withRows(firstState({ place: 'memory', prefix: '', sort: 'waiters' }), read)
}

function presses(state: TopState, keys: readonly string[]): TopState {
  return keys.reduce((now, key) => press(now, key, pageOf(now, size)) ?? now, state)
}

const seen = (leases: readonly LeaseRecord[], waiters: readonly WaiterRecord[] = []): Seen => ({ leases, waiters })

const share = { mode: 'exclusive', permits: 1 } as const

const lease = (lockName: string, claimId: string, changes: Partial<LeaseRecord> = {}): LeaseRecord => ({
  ...{ lockName, claimId, holderId: 'x', ...share, fencingToken: 1, acquiredAtMs: NOW_MS },
  ...changes,
})

const waiter = (lockName: string, claimId: string, agoMs: number): WaiterRecord => ({
  ...{ lockName, claimId, holderId: claimId, ...share, waitingSinceMs: NOW_MS - agoMs },
})
