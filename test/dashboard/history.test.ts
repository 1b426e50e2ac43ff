import { expect, test } from 'vitest'
import type { LeaseRecord, WaiterRecord } from '../../src/core/driver.ts'
import { History } from '../../src/dashboard/history.ts'
import { type Reading, viewOf } from '../../src/dashboard/lock-view.ts'
import { StoreClock } from '../../src/dashboard/store-clock.ts'
import { metadataOf, recordName } from '../../src/primitives/lock/forced-release-record.ts'

const GAP_MS = 5_000
const START = 1_700_000_000_000

const lease = (holderId: string, fencingToken: number, times: { at: number; end?: number }): LeaseRecord => ({
  lockName: 'a',
  claimId: `claim-${fencingToken}`,
  holderId,
  mode: 'exclusive',
  permits: 1,
  fencingToken,
  acquiredAtMs: START + times.at,
  ...(times.end !== undefined && { expiresAtMs: START + times.end }),
})

const waiter = (holderId: string, token: number, since: number): WaiterRecord => ({
  lockName: 'a',
  claimId: `claim-${token}`,
  holderId,
  mode: 'exclusive',
  permits: 1,
  waitingSinceMs: START + since,
})

/** Feeds readings, and returns how each lease ended. */
function endsAfter(...readings: [at: number, leases: LeaseRecord[], waiters?: WaiterRecord[]][]) {
  const history = new History()
  for (const [at, leases, waiters = []] of readings) {
    const reading: Reading = { leases, waiters, complete: true, nowMs: START + at }
    history.record(viewOf(reading), GAP_MS)
  }
  return history
    .of('a')
    .map(({ holder, from, to, end, waited }) => ({ holder, from: from - START, to: to && to - START, end, waited }))
}

test('a lease that was released to a waiter ends as passed', () => {
  const ends = endsAfter(
    [500, [lease('one', 1, { at: 0, end: 30_000 })], [waiter('two', 2, 200)]],
    [1_000, [lease('two', 2, { at: 700, end: 30_700 })]],
  )
  expect(ends).toEqual([
    { holder: 'one', from: 0, to: 700, end: 'passed', waited: undefined },
    { holder: 'two', from: 700, to: undefined, end: undefined, waited: 500 },
  ])
})

test('a lease that no one follows is released', () => {
  const ends = endsAfter([500, [lease('one', 1, { at: 0, end: 30_000 })]], [1_000, []])
  expect(ends).toMatchObject([{ end: 'released', to: 1_000 }])
})

test('a lease that was not renewed is lost at its end, whether another follows or not', () => {
  const dying = lease('one', 1, { at: 0, end: 2_000 })
  expect(endsAfter([1_800, [dying]], [2_300, []])).toMatchObject([{ end: 'expired', to: 2_000 }])
  const next = lease('two', 2, { at: 2_001, end: 9_000 })
  expect(endsAfter([1_800, [dying], [waiter('two', 2, 0)]], [2_300, [next]])).toMatchObject([
    { end: 'expired', to: 2_000 },
    { holder: 'two' },
  ])
})

test('the lease that follows shows that a release shortly before the end was no loss', () => {
  const ends = endsAfter(
    [1_800, [lease('one', 1, { at: 0, end: 2_000 })], [waiter('two', 2, 0)]],
    [2_300, [lease('two', 2, { at: 1_850, end: 9_000 })]],
  )
  expect(ends[0]).toMatchObject({ end: 'passed', to: 1_850 })
})

test('a renewed lease is not lost', () => {
  const ends = endsAfter(
    [500, [lease('one', 1, { at: 0, end: 2_000 })]],
    [2_500, [lease('one', 1, { at: 0, end: 4_000 })]],
    [3_000, []],
  )
  expect(ends).toMatchObject([{ end: 'released', to: 3_000 }])
})

test('a short lease that ended between two readings is not called lost', () => {
  expect(endsAfter([100, [lease('one', 1, { at: 0, end: 300 })]], [600, []])).toMatchObject([{ end: 'unknown' }])
  // A heartbeat renews it. A large store is read every two seconds.
  const readings = [1_000, 3_000, 5_000].map((at): [number, LeaseRecord[]] => [
    at,
    [lease('one', 1, { at: 0, end: at + 1_700 })],
  ])
  expect(endsAfter(...readings, [7_000, []])).toMatchObject([{ end: 'unknown', to: 6_700 }])
})

test('a record of a forced release that did not happen does not mark the later end of the lease', () => {
  const record: LeaseRecord = {
    ...lease('ada', 9, { at: 900, end: 900_000 }),
    lockName: recordName('a', 1),
    metadata: metadataOf({ by: 'ada', reason: 'it hangs', at: new Date(START + 900), ended: ['one'] }),
  }
  const readings = Array.from({ length: 15 }, (_, index): [number, LeaseRecord[]] => {
    const at = (index + 1) * 4_000
    return [at, [record, lease('one', 1, { at: 0, end: at + 30_000 })]]
  })
  expect(endsAfter(...readings, [64_000, [record]])).toMatchObject([{ end: 'released', to: 64_000 }])
})

test('a lease that was force-released names who did it and why, and the same record does not end its successor', () => {
  const record: LeaseRecord = {
    ...lease('ada', 9, { at: 900, end: 900_000 }),
    lockName: recordName('a', 1),
    metadata: metadataOf({ by: 'ada', reason: 'it hangs', at: new Date(START + 900), ended: ['one'] }),
  }
  const history = new History()
  const read = (at: number, leases: LeaseRecord[]) =>
    history.record(viewOf({ leases, waiters: [], complete: true, nowMs: START + at }), GAP_MS)
  read(500, [lease('one', 1, { at: 0, end: 30_000 })])
  read(1_000, [record, lease('two', 12, { at: 950, end: 30_950 })])
  read(1_500, [record])
  expect(history.of('a')).toMatchObject([
    { holder: 'one', end: 'force-released', to: START + 900, by: 'ada', reason: 'it hangs' },
    { holder: 'two', end: 'released' },
  ])
})

test('what ended while no one watched is unknown, and the gap is kept', () => {
  const history = new History()
  const read = (at: number, leases: LeaseRecord[]) =>
    history.record(viewOf({ leases, waiters: [], complete: true, nowMs: START + at }), GAP_MS)
  read(500, [lease('one', 1, { at: 0, end: 30_000 })])
  const happened = read(60_000, [lease('two', 2, { at: 40_000, end: 70_000 })])
  expect(happened).toEqual({ granted: 0, released: 0, expired: 0, forceReleased: 0 })
  expect(history.of('a')).toMatchObject([{ end: 'unknown', to: START + 500 }, { holder: 'two' }])
  expect(history.gaps()).toEqual([[START + 500, START + 60_000]])
})

test('a lease that one reading missed goes on', () => {
  const held = lease('one', 1, { at: 0, end: 30_000 })
  expect(endsAfter([500, [held]], [1_000, []], [1_500, [held]])).toMatchObject([{ to: undefined, end: undefined }])
})

test('history is bounded: by an hour, and by a number of leases', () => {
  const history = new History()
  for (let round = 0; round < 2_000; round += 1) {
    const at = round * 2_000
    const held = lease('one', round + 1, { at, end: at + 30_000 })
    history.record(viewOf({ leases: [held], waiters: [], complete: true, nowMs: START + at }), GAP_MS)
  }
  const spans = history.of('a')
  expect(spans.length).toBeLessThanOrEqual(500)
  expect(spans.at(-1)?.token).toBe(2_000)
})

test('the clock of the store is 0 away from ours unless its records prove otherwise', () => {
  const clock = new StoreClock()
  const learn = (at: number, end: number, readAt: number) =>
    clock.learn({ leases: [lease('one', 1, { at, end })], waiters: [] }, START + readAt, START + readAt)
  learn(0, 30_000, 1_000)
  expect(clock.now(START)).toBe(START)
  // It was acquired three seconds after it was read: the store is ahead.
  learn(4_000, 34_000, 1_000)
  expect(clock.now(START)).toBe(START + 3_000)
  // It is listed although it has ended by our clock: the store is behind.
  learn(0, 30_000, 31_000)
  expect(clock.now(START)).toBe(START - 1_000)
})

test('the clock of the store goes on between two leases that prove a difference', () => {
  const clock = new StoreClock()
  for (let at = 0; at <= 20_000; at += 500) {
    // The store is ten seconds ahead. The lease is renewed now and then.
    const held = lease('one', 1, { at: 10_000, end: 40_000 + Math.floor(at / 10_000) * 10_000 })
    clock.learn({ leases: [held], waiters: [] }, START + at, START + at)
    expect(Math.abs(clock.now(START + at) - (START + at + 10_000))).toBeLessThan(100)
  }
})
