import { describe, expect, test } from 'vitest'
import { CHECKS, judge } from '../../chaos/checks/judge.ts'
import { keptOf } from '../../chaos/checks/kept.ts'
import { overtaken } from '../../chaos/checks/order.ts'
import type { InjectedFault, Run } from '../../chaos/checks/run.ts'
import { percentile, signalTimes } from '../../chaos/checks/signal.ts'
import type { ClaimHistory, ClientHistory, LeaseHistory, RateHistory } from '../../chaos/history.ts'

/** A run of one client process, with nothing wrong. */
function run(history: Partial<ClientHistory>, more: Partial<Run> = {}): Run {
  const nothing = { leases: [], claims: [], rates: [], stalls: [], memory: [], errors: {}, unexpected: [] }
  return {
    histories: [{ client: '0-1', ...nothing, resurrected: [], aliveAt: 1_000_000, ...history }],
    faults: [],
    losses: [],
    spared: [],
    stalls: [],
    records: [],
    queue: [],
    left: [],
    hasQueue: true,
    callTimeoutMs: 5_000,
    waiterTtlMs: 3_000,
    longestTtlMs: 2_000,
    ...more,
  }
}

/** What the checks have found, by their names. */
function found(of: Run): Record<string, string[]> {
  const all: Record<string, string[]> = {}
  for (const { check, text, isExcused } of judge(of)) {
    const key = isExcused ? `excused ${check}` : check
    all[key] = [...(all[key] ?? []), text]
  }
  return all
}

let last = 0
function lease(token: number, knownAt: number, heldUntil: number, more: Partial<LeaseHistory> = {}): LeaseHistory {
  last += 1
  const times = { ttlMs: 1_000, askedAt: knownAt, knownAt, heldUntil }
  return { id: `0-1.${last}`, name: 'order', token, ...times, end: 'released', ...more }
}

test('a healthy run has no findings, and every check has its own name', () => {
  expect(judge(run({ leases: [lease(1, 0, 10), lease(2, 11, 20)] }))).toEqual([])
  expect(new Set(CHECKS.map(({ name }) => name)).size).toBe(CHECKS.length)
})

test('exclusion, fencing: two holders with one token are found, with the leases and their time', () => {
  const [first, second] = [lease(1, 0, 10), lease(1, 5, 20)]
  const findings = judge(run({ leases: [first, second] }))
  expect(findings.map(({ check }) => check)).toEqual(['exclusion', 'fencing'])
  expect(findings[0]).toMatchObject({ leases: [first, second], lockName: 'order', fromMs: 5, toMs: 20 })
})

describe('updates', () => {
  const record = { name: 'order', isChecked: true, writes: 3, value: 3, refused: 1, lostUpdates: [], lostAfterCheck: 0 }
  const lost = { ...record, value: 2, lostUpdates: ['token 7: 1 became 2, but was 2'] }

  test('are found if they are lost in a record that checks tokens', () => {
    expect(found(run({}, { records: [record] }))).toEqual({})
    expect(found(run({}, { records: [lost] }))).toEqual({
      updates: ['a lost update of "order": token 7: 1 became 2, but was 2', '"order" was written 3 times, but is 2'],
    })
  })

  test('are no violation in a record that checks none', () => {
    expect(found(run({}, { records: [{ ...lost, isChecked: false }] }))).toEqual({})
  })
})

describe('signal', () => {
  const lostAt = (signalledAt: number | undefined, ticksLate: number): Partial<ClientHistory> => ({
    leases: [
      lease(1, 0, 90, {
        end: 'lost',
        loss: { ...(signalledAt !== undefined && { signalledAt }), deadlineAt: 100, ticksLate, isBySignal: true },
      }),
    ],
  })

  test('may come before the deadline, or after one run of the timers behind it', () => {
    expect(found(run(lostAt(98, 0)))).toEqual({})
    expect(found(run(lostAt(3_000, 1)))).toEqual({})
  })

  test('is late if timers have run twice after the deadline', () => {
    expect(found(run(lostAt(121, 2)))['signal']?.[0]).toMatch(/signalled to 0-1\.\d+ 21\.0 ms late/)
  })

  test('is missing if it never comes', () => {
    expect(found(run(lostAt(undefined, 0)))['signal']?.[0]).toContain('never signalled')
  })

  test('has a time after the deadline, apart for processes that were stalled at the deadline', () => {
    const stalls = [{ fromMs: 60, toMs: 3_000 }]
    expect(signalTimes(run(lostAt(98, 0)))).toEqual({ running: [-2], stalled: [] })
    expect(signalTimes(run({ ...lostAt(3_001, 1), stalls }))).toEqual({ running: [], stalled: [2_901] })
    // A stall that is over before the deadline is no excuse.
    expect(signalTimes(run({ ...lostAt(105, 1), stalls: [{ fromMs: 0, toMs: 90 }] })).running).toEqual([5])
  })

  test('has percentiles', () => {
    const times = Array.from({ length: 100 }, (_, at) => 99 - at)
    expect([0.5, 0.99, 1].map((share) => percentile(times, share))).toEqual([50, 99, 99])
    expect(percentile([], 0.5)).toBeUndefined()
  })
})

test('resurrection: a lease that is held again after its loss is found', () => {
  expect(found(run({ resurrected: ['0-1.7'] }))).toEqual({ resurrection: ['0-1.7 was held again after its loss'] })
})

describe('waiters', () => {
  const claim = (more: Partial<ClaimHistory>): Partial<ClientHistory> => ({
    claims: [{ id: '0-1.1', name: 'order', kind: 'lock', ttlMs: 1_000, askedAt: 1_000, waitMs: 2_000, ...more }],
  })
  const isLate = (of: Partial<ClientHistory>): boolean => found(run(of))['waiters'] !== undefined

  test('are answered when their waiting time is over', () => {
    expect(isLate(claim({ answeredAt: 3_900, outcome: 'refused' }))).toBe(false)
    expect(isLate(claim({ answeredAt: 4_100, outcome: 'refused' }))).toBe(true)
  })

  test('that do not wait are answered as fast as a call may take', () => {
    expect(isLate(claim({ waitMs: 0, answeredAt: 6_900, outcome: 'granted' }))).toBe(false)
    expect(isLate(claim({ waitMs: 0, answeredAt: 7_100, outcome: 'granted' }))).toBe(true)
  })

  test('that are aborted are answered at once', () => {
    expect(isLate(claim({ waitMs: 60_000, abortedAt: 1_500, answeredAt: 1_600, outcome: 'aborted' }))).toBe(false)
    expect(isLate(claim({ waitMs: 60_000, abortedAt: 1_500, answeredAt: 2_600, outcome: 'aborted' }))).toBe(true)
  })

  test('are not late by the time in which their own process was stalled', () => {
    const late = claim({ answeredAt: 8_000, outcome: 'refused' })
    expect(isLate({ ...late, stalls: [{ fromMs: 2_500, toMs: 7_000 }] })).toBe(false)
    expect(isLate({ ...late, stalls: [{ fromMs: 2_500, toMs: 6_000 }] })).toBe(true)
  })

  test('without an answer are stuck if their process went on, but not if it was killed', () => {
    expect(isLate({ ...claim({}), aliveAt: 3_500 })).toBe(false)
    expect(found(run({ ...claim({}), aliveAt: 60_000 }))['waiters']?.[0]).toContain('not answered 57000 ms after')
  })

  test('without an end of their waiting time are only bound by an abort', () => {
    const { waitMs: _, ...endless } = (
      claim({ answeredAt: 90_000, outcome: 'granted' }).claims as ClaimHistory[]
    )[0] as ClaimHistory
    expect(isLate({ claims: [endless] })).toBe(false)
    expect(isLate({ claims: [{ ...endless, abortedAt: 50_000 }] })).toBe(true)
  })
})

describe('kept', () => {
  const fault = { kind: 'server-hung' }
  const spared = { fault, fromMs: 5_000, toMs: 9_000 }
  const keep = (heldUntil: number, more: Partial<LeaseHistory> = {}): LeaseHistory =>
    lease(1, 1_000, heldUntil, { name: 'keep:0', kind: 'keep', end: 'lost', ...more })
  const claim = (name: string, outcome: 'granted' | 'failed'): ClaimHistory => ({
    ...{ id: '0-1.9', name, kind: 'lock', ttlMs: 1_000, askedAt: 6_000, answeredAt: 6_500, outcome },
    ...(outcome === 'failed' && { code: 'STORE_UNAVAILABLE' }),
  })
  const judged = (history: Partial<ClientHistory>, more: Partial<Run> = {}) => {
    const of = run(history, { spared: [spared], faults: [{ fault, fromMs: 5_000, toMs: 9_000 }], ...more })
    return { found: found(of)['kept'], ...keptOf(of) }
  }

  test('a lease that is lost under a fault that the store promises to bear is found', () => {
    const text = '0-1.5 lost "keep:0" under server-hung alone'
    expect(judged({ leases: [keep(7_000, { id: '0-1.5' })] })).toEqual({ found: [text], leases: 1, claims: 0 })
    expect(judged({ leases: [keep(9_500), keep(20_000, { end: 'released' })] })).toMatchObject({ leases: 2 })
    expect(judged({ leases: [keep(9_500)] }).found).toBeUndefined()
  })

  test('a lease that was lost before proves nothing, nor does one with another fault, a stall or another name', () => {
    const leases = [keep(7_000)]
    const nothing = { found: undefined, leases: 0, claims: 0 }
    expect(judged({ leases: [keep(4_900), keep(7_000, { kind: 'lock' })] })).toEqual(nothing)
    const other = { fault: { kind: 'late', client: 0 }, fromMs: 1_000, toMs: 2_500 }
    expect(judged({ leases }, { faults: [other] })).toEqual(nothing)
    expect(judged({ leases }, { faults: [{ ...other, fault: { kind: 'late', client: 3 } }] }).leases).toBe(1)
    expect(judged({ leases, stalls: [{ fromMs: 4_000, toMs: 4_600 }] })).toEqual(nothing)
    expect(judged({ leases }, { stalls: [{ fromMs: 6_000, toMs: 6_600 }] })).toEqual(nothing)
    expect(judged({ leases }, { spared: [{ ...spared, names: ['keep:1'] }] })).toEqual(nothing)
  })

  test('a claim that fails is found where claims must be answered', () => {
    const claims = [claim('a', 'failed'), claim('b', 'failed'), claim('a', 'granted')]
    const text = 'the claim 0-1.9 of "a" failed with STORE_UNAVAILABLE under server-hung alone'
    const answered = { spared: [{ ...spared, names: ['a'], answers: true }] }
    expect(judged({ claims }, answered)).toEqual({ found: [text], leases: 0, claims: 2 })
    expect(judged({ claims })).toMatchObject({ found: undefined, claims: 0 })
  })

  test('what the fault itself has seen is found', () => {
    const text = 'the next of the crowd was not granted the lock'
    const found = [`under server-hung alone, ${text}`]
    expect(judged({}, { spared: [{ ...spared, wrong: [text] }] })).toMatchObject({ found })
  })
})

describe('ended', () => {
  const loss = { fromMs: 5_000, toMs: 5_100, endsAll: true }
  const endedIn = (
    heldUntil: number,
    more: Partial<LeaseHistory> = {},
    changes: Partial<typeof loss> = {},
    client = 0,
  ) => {
    const leases = [lease(1, 4_900, heldUntil, { id: '0-1.7', name: 'order', ...more })]
    return found(run({ leases }, { losses: [{ ...loss, clients: [client], ...changes }] }))['ended']
  }

  test('a lease that is relied on for longer than a lease after the store has lost it is found', () => {
    expect(endedIn(7_101)).toEqual(['0-1.7 held "order" until 2001 ms after it was lost'])
  })

  test('one that ended in time, was granted later, or may not have been lost is not', () => {
    expect(endedIn(7_100)).toBeUndefined()
    expect(endedIn(9_000, { knownAt: 5_000 })).toBeUndefined()
    expect(endedIn(9_000, {}, { endsAll: false })).toBeUndefined()
    expect(endedIn(9_000, {}, {}, 1)).toBeUndefined()
  })
})

describe('order', () => {
  /** A claim that was in the queue from `waitingAt` on, and was granted with the token. */
  const served = (number: number, token: number, askedAt: number, knownAt: number, waitingAt?: number) => ({
    claim: {
      ...{ id: `0-1.${number}`, name: 'order', kind: 'lock', ttlMs: 1_000, askedAt, waitMs: 9_000 },
      ...{ answeredAt: knownAt, outcome: 'granted', ...(waitingAt !== undefined && { waitingAt }) },
    } as ClaimHistory,
    lease: lease(token, knownAt, knownAt + 1, { id: `0-1.${number}`, claim: `0-1.${number}`, askedAt }),
  })
  const queue = (
    all: ReturnType<typeof served>[],
    more: Partial<Run> = {},
    history: Partial<ClientHistory> = {},
  ): Run => run({ claims: all.map(({ claim }) => claim), leases: all.map((each) => each.lease), ...history }, more)
  const early = served(1, 8, 5_000, 5_900, 5_010)
  const late = served(2, 7, 5_050, 5_500)
  const fault = (more: object): InjectedFault => ({ fault: { kind: 'late', ...more }, fromMs: 4_000, toMs: 4_500 })

  test('a waiter that is overtaken by a later claim is found', () => {
    expect(found(queue([early, late]))).toEqual({ order: ['0-1.2 got "order" before 0-1.1, which had waited 40.0 ms'] })
    expect(overtaken(queue([early, late])).pairs).toBe(1)
  })

  test('waiters that fit together may be granted in any order', () => {
    const shared = (each: ReturnType<typeof served>, more: Partial<LeaseHistory>) => ({
      ...each,
      lease: { ...each.lease, mode: 'shared' as const, ...more },
    })
    const overtakes = (more: Partial<LeaseHistory>): boolean =>
      overtaken(queue([shared(early, more), shared(late, more)])).found.length > 0
    expect(overtakes({})).toBe(false)
    expect(overtakes({ limit: 2, permits: 1 })).toBe(false)
    expect(overtakes({ limit: 3, permits: 2 })).toBe(true)
    // Beside a third one, which is held when the later claim is granted.
    const beside = (permits: number): boolean => {
      const some = [early, late].map((each) => shared(each, { limit: 3, permits: 1 }))
      const third = shared(served(3, 1, 4_000, 4_100), { limit: 3, permits, heldUntil: 5_600 })
      return overtaken(queue([...some, third])).found.length > 0
    }
    expect([beside(1), beside(2)]).toEqual([false, true])
  })

  test('a waiter that is served first is not', () => {
    const run = queue([served(1, 6, 5_000, 5_400, 5_010), late])
    expect(overtaken(run)).toEqual({ pairs: 1, found: [] })
  })

  test('two claims whose order is not known prove nothing', () => {
    expect(overtaken(queue([served(1, 8, 5_000, 5_900, 5_060), late]))).toEqual({ pairs: 0, found: [] })
    expect(overtaken(queue([served(1, 8, 5_000, 5_900), late]))).toEqual({ pairs: 0, found: [] })
  })

  test('a driver without a queue promises no order', () => {
    expect(overtaken(queue([early, late], { hasQueue: false })).pairs).toBe(0)
  })

  test('a waiter under a fault proves nothing, but a fault of another client does not matter', () => {
    const pairs = (of: InjectedFault): number => overtaken(queue([early, late], { faults: [of] })).pairs
    expect(pairs(fault({}))).toBe(0)
    expect(pairs(fault({ client: 0 }))).toBe(0)
    expect(pairs(fault({ ways: { clients: [0, 2] } }))).toBe(0)
    expect(pairs(fault({ clients: [1] }))).toBe(1)
    expect(pairs({ ...fault({}), fromMs: 0, toMs: 1_000 })).toBe(1)
    expect(pairs({ ...fault({}), fromMs: 6_000, toMs: 7_000 })).toBe(1)
  })

  test('a waiter whose process was stalled for long proves nothing', () => {
    const stalled = (ms: number): number =>
      overtaken(queue([served(1, 8, 5_000, 9_000, 5_010), late], {}, { stalls: [{ fromMs: 5_100, toMs: 5_100 + ms }] }))
        .pairs
    expect([stalled(1_400), stalled(1_600)]).toEqual([1, 0])
  })

  test('clients that queue after the faults are served in their order', () => {
    const tokens = (...all: number[]) => all.map((token, client) => ({ client, token }))
    expect(found(run({}, { queue: tokens(3, 5, 9) }))).toEqual({})
    expect(found(run({}, { queue: tokens(3, 9, 5) }))).toHaveProperty('order')
  })
})

describe('limit', () => {
  const permits = (token: number, from: number, to: number, count: number): LeaseHistory =>
    lease(token, from, to, { name: 'pool', mode: 'shared', limit: 3, permits: count, kind: 'permits' })

  test('permits up to the limit may be held at the same time', () => {
    expect(found(run({ leases: [permits(1, 0, 10, 2), permits(2, 5, 20, 1), permits(3, 11, 30, 2)] }))).toEqual({})
  })

  test('one permit too many is found', () => {
    const leases = [permits(1, 0, 10, 2), permits(2, 5, 20, 1), permits(3, 9, 30, 1)]
    expect(found(run({ leases }))['limit']?.[0]).toContain('held 4 permits of "pool", but at most 3')
  })

  test('a loss of the store between the grants excuses it', () => {
    const leases = [permits(1, 0, 10, 3), permits(2, 9, 20, 1)]
    expect(found(run({ leases }, { losses: [{ fromMs: 3, toMs: 4 }] }))).toHaveProperty('excused limit')
    expect(found(run({ leases }, { losses: [{ fromMs: 30, toMs: 40 }] }))).toHaveProperty('limit')
  })

  test('a loss of the store excuses only the permits from before it', () => {
    const lost = permits(1, 0, 30, 1)
    const since = [permits(2, 9, 30, 2), permits(3, 10, 30, 1), permits(4, 11, 30, 1)]
    const judged = (leases: LeaseHistory[]) => Object.keys(found(run({ leases }, { losses: [{ fromMs: 3, toMs: 4 }] })))
    expect(judged([lost, ...since.slice(0, 2)])).toEqual(['excused limit'])
    expect(judged([lost, ...since])).toEqual(['excused limit', 'limit'])
    // Its client may learn of it last.
    expect(judged([...since.slice(0, 2), permits(1, 20, 30, 1)].map((each) => ({ ...each, askedAt: 0 })))).toEqual([
      'excused limit',
    ])
  })
})

describe('election', () => {
  const term = (token: number, from: number, to: number): LeaseHistory =>
    lease(token, from, to, { name: 'leader', kind: 'election' })

  test('one leader after the other is well', () => {
    expect(found(run({ leases: [term(1, 0, 10), term(2, 10, 20)] }))).toEqual({})
  })

  test('two leaders at a time, and a term that falls, are found', () => {
    expect(Object.keys(found(run({ leases: [term(1, 0, 10), term(2, 9, 20)] })))).toEqual(['election'])
    expect(found(run({ leases: [term(2, 0, 10), term(1, 11, 20)] }))['election']?.[0]).toContain('got the token 1')
  })
})

describe('rate', () => {
  const step = (askedAt: number, answeredAt: number, more: Partial<RateHistory> = {}): RateHistory => ({
    ...{ name: 'api', cost: 1, limit: 10, periodMs: 1_000, burst: 2, askedAt, answeredAt, allowed: true },
    ...more,
  })
  const isExcessive = (rates: RateHistory[], more: Partial<Run> = {}): boolean =>
    found(run({ rates }, more))['rate'] !== undefined

  test('a burst, and one unit each 100 ms after it, are allowed', () => {
    expect(isExcessive([step(0, 1), step(1, 2), step(99, 100), step(199, 200), step(299, 300)])).toBe(false)
  })

  test('one unit above the burst is found', () => {
    expect(isExcessive([step(0, 1), step(1, 2), step(2, 3)])).toBe(true)
    expect(isExcessive([step(0, 1), step(1, 2, { cost: 2 })])).toBe(true)
  })

  test('a rate above the limit is found in the long run', () => {
    expect(isExcessive(Array.from({ length: 40 }, (_, at) => step(at * 90, at * 90 + 1)))).toBe(true)
    expect(isExcessive(Array.from({ length: 40 }, (_, at) => step(at * 100, at * 100 + 1)))).toBe(false)
  })

  test('a clock of whole milliseconds may be one ahead', () => {
    const steps = [step(0.9, 0.95), step(0.95, 0.99)]
    expect(isExcessive([...steps, step(100.1, 100.2)])).toBe(false)
    expect(isExcessive([...steps, step(98, 99)])).toBe(true)
  })

  test('a step whose answer came late may have been decided at any time before it', () => {
    expect(isExcessive([step(0, 1), step(1, 2), step(2, 300)])).toBe(false)
  })

  test('steps that were refused, and steps without an answer, take nothing', () => {
    const [refused, unknown] = [step(2, 3, { allowed: false }), step(2, 3, { allowed: 'STORE_UNAVAILABLE' })]
    expect(isExcessive([step(0, 1), step(1, 2), refused, unknown])).toBe(false)
  })

  test('other names have their own units, and a store that lost its data starts again', () => {
    expect(isExcessive([step(0, 1), step(1, 2), step(2, 3, { name: 'other' })])).toBe(false)
    expect(isExcessive([step(0, 1), step(1, 2), step(5, 6)], { losses: [{ fromMs: 3, toMs: 4 }] })).toBe(false)
  })
})

test('left in the store: everything that is left is found', () => {
  expect(found(run({}, { left: ['the lease 7 of "order"'] }))).toEqual({
    'left in the store': ['the lease 7 of "order"'],
  })
})

test('errors: an error without a documented code is found, with its text', () => {
  const errors = { 'acquire STORE_UNAVAILABLE': 9, 'extend NOT_HELD': 1 }
  expect(found(run({ errors }))).toEqual({})
  const unexpected = ['release: TypeError: x is undefined', 'acquire: Error: read ECONNRESET']
  expect(found(run({ errors: { ...errors, 'acquire ECONNRESET': 1, 'release none': 2 }, unexpected }))).toEqual({
    errors: [
      'a call of client 0-1 failed with an error that is not documented: acquire: Error: read ECONNRESET',
      'a call of client 0-1 failed with an error that is not documented: release: TypeError: x is undefined',
    ],
  })
})

describe('memory', () => {
  const MIB = 2 ** 20
  const grows = (heap: (second: number) => number, seconds = 60): boolean => {
    const samples = Array.from({ length: seconds / 2 }, (_, at) => ({
      ...{ atMs: at * 2_000, rssBytes: 90 * MIB, heapBytes: heap(at * 2) },
    }))
    return found(run({ memory: samples }))['memory'] !== undefined
  }

  test('may jump in the beginning, and for a moment', () => {
    expect(grows((second) => (second < 14 ? 5 : 20) * MIB)).toBe(false)
    expect(grows((second) => (second === 50 ? 80 : 20) * MIB)).toBe(false)
  })

  test('that grows all the time is found', () => {
    expect(grows((second) => (20 + second / 5) * MIB)).toBe(true)
  })

  test('of a process that lived for a short time proves nothing', () => {
    expect(grows((second) => (20 + second) * MIB, 18)).toBe(false)
  })
})
