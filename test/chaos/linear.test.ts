import { describe, expect, test } from 'vitest'
import type { LeaseHistory } from '../../chaos/history.ts'
import { checkLeases } from '../../chaos/linear/leases.ts'
import {
  type Acquire,
  fenced,
  fencedMutex,
  type LockModel,
  mutex,
  type Operation,
  readWriteLock,
  semaphore,
} from '../../chaos/linear/model.ts'
import { checkHistory } from '../../chaos/linear/windows.ts'

/**
 * A history in short: `A+ 0 2 #7` is a claim of the lease A from 0 to 2 that was granted with token 7, `A- 3 4` its
 * release, `A-! 3 4` a release that was answered with "not held". `no` is a refusal, `r` a reader, `x2` two permits,
 * and an end of `?` means that there was no answer.
 */
function history(text: string): Operation[] {
  return text.split(';').map((part, at) => {
    const [call = '', begin, end, ...words] = part.trim().split(' ')
    const times = { beginMs: Number(begin), ...(end !== '?' && { endMs: Number(end) }) }
    const lease = call[0] ?? ''
    const id = `${at + 1}:${call}`
    if (call.includes('-')) {
      const answer = end !== '?' && { answer: !call.endsWith('!') }
      return { id, lease, what: { kind: 'release', ...answer }, ...times }
    }
    const token = words.find((word) => word.startsWith('#'))
    const permits = words.find((word) => word.startsWith('x'))
    const what: Acquire = {
      kind: 'acquire',
      ...(end !== '?' && { answer: words.includes('no') ? 'refused' : 'granted' }),
      ...(words.includes('r') && { mode: 'shared' }),
      ...(token !== undefined && { token: Number(token.slice(1)) }),
      ...(permits !== undefined && { permits: Number(permits.slice(1)) }),
    }
    return { id, lease, what, ...times }
  })
}

const GOOD: [LockModel, claim: string, history: string][] = [
  [mutex, 'one holder after the other', 'A+ 0 1; A- 2 3; B+ 4 5; B- 6 7'],
  [mutex, 'a claim that waits while another holds', 'A+ 0 1; B+ 0 9; A- 5 6; B- 10 11'],
  [mutex, 'a hand-off before the release is answered', 'A+ 0 1; A- 2 9; B+ 1 3'],
  [mutex, 'a release whose answer is lost, with effect', 'A+ 0 1; A- 2 ?; B+ 3 4'],
  [mutex, 'a release whose answer is lost, without effect', 'A+ 0 1; A- 2 ?; B+ 3 4 no'],
  [mutex, 'a release whose answer is lost, with effect much later', 'A+ 0 1; A- 2 ?; B+ 3 4 no; C+ 5 6; D+ 7 8 no'],
  [mutex, 'a claim whose answer is lost, without effect', 'A+ 0 ?; B+ 1 2'],
  [mutex, 'a claim whose answer is lost, with effect', 'A+ 0 ?; B+ 1 2 no'],
  [mutex, 'a claim whose answer is lost, with effect after another holder', 'A+ 0 ?; B+ 1 2; B- 3 4; C+ 5 6 no'],
  [mutex, 'a refusal while another holds', 'A+ 0 1; B+ 2 3 no; A- 4 5'],
  [mutex, 'a refusal beside a grant', 'A+ 0 5; B+ 0 5 no'],
  [mutex, 'a late release of a lease that has expired', 'A+ 0 1; A- 2 ?; B+ 3 4; A-! 5 6; B- 7 8'],
  [mutex, 'an end and a begin at the same time', 'A+ 0 1; A- 2 ?; B+ 2 2'],
  [fencedMutex, 'rising tokens', 'A+ 0 1 #1; A- 2 3; B+ 4 5 #2'],
  [fencedMutex, 'tokens that rise with gaps', 'A+ 0 1 #10; A- 2 3; B+ 4 5 #70'],
  [fencedMutex, 'claims at the same time, served in the order of their tokens', 'B+ 0 9 #2; A+ 0 9 #1; A- 0 ?; B- 9 ?'],
  [fencedMutex, 'an answer that arrives late, and whose lease is over', 'A+ 0 9 #1; A- 0 ?; B+ 1 2 #2; B- 3 4'],
  [readWriteLock, 'readers beside each other', 'A+ 0 1 r; B+ 2 3 r; C+ 4 5 r'],
  [readWriteLock, 'a writer after the last reader', 'A+ 0 1 r; B+ 2 3 r; A- 4 5; W+ 4 9; B- 6 7'],
  [readWriteLock, 'readers after a writer', 'W+ 0 1; A+ 1 4 r; B+ 1 4 r; W- 2 3'],
  [readWriteLock, 'a reader that is refused beside a writer', 'W+ 0 1; A+ 2 3 r no; W- 4 5'],
  [fenced(readWriteLock), 'readers with rising tokens', 'A+ 0 1 r #1; B+ 2 3 r #2; A- 4 5; B- 4 5; W+ 6 7 #3'],
  [semaphore(2), 'two holders of two permits', 'A+ 0 1 r; B+ 2 3 r; A- 4 5; C+ 6 7 r'],
  [semaphore(3), 'one holder of two permits, and one of one', 'A+ 0 1 r x2; B+ 2 3 r x1; C+ 4 5 r x1 no'],
  [semaphore(2), 'a third holder when one of two has expired', 'A+ 0 1 r; B+ 2 3 r; A- 4 ?; C+ 5 6 r'],
]

const BAD: [LockModel, claim: string, history: string][] = [
  [mutex, 'two holders', 'A+ 0 1; B+ 2 3; A- 4 5; B- 6 7'],
  [mutex, 'two holders that asked at the same time', 'A+ 0 1; B+ 0 1; A- 2 3; B- 2 3'],
  [mutex, 'two holders, of which one crashed', 'A+ 0 1; A- 9 ?; B+ 2 3'],
  [mutex, 'a lease that expires in the store before it does for its holder', 'A+ 0 1; A- 5 ?; B+ 2 4'],
  [mutex, 'a refusal while the lock is free', 'A+ 0 1 no'],
  [mutex, 'a refusal after the release', 'A+ 0 1; A- 2 3; B+ 4 5 no'],
  [mutex, 'a claim whose answer is lost, with effect before it was made', 'B+ 0 1 no; A+ 2 ?'],
  [mutex, 'a release that says "not held" while it is held', 'A+ 0 1; A-! 2 3'],
  [mutex, 'a release that says "held" after another was granted', 'A+ 0 1; B+ 2 3; A- 4 5'],
  [mutex, 'a stale release that ends the lease of another', 'A+ 0 1; A- 2 ?; B+ 3 4; A-! 5 6; C+ 7 8; B- 9 10'],
  [mutex, 'a hand-off before the release began', 'A+ 0 1; B+ 2 3; A- 4 ?'],
  [mutex, 'two holders after a hundred turns in between', `${turns(100)}; A+ 900 901; B+ 902 903`],
  [fencedMutex, 'a token that falls', 'A+ 0 1 #2; A- 2 3; B+ 4 5 #1'],
  [fencedMutex, 'the same token twice', 'A+ 0 1 #1; A- 2 3; B+ 4 5 #1'],
  [fencedMutex, 'a token that falls although the claims overlap', 'A+ 0 5 #2; B+ 0 20 #1; A- 6 7; B- 21 22'],
  [fencedMutex, 'two holders with rising tokens', 'A+ 0 1 #1; B+ 2 3 #2; A- 4 5'],
  [fencedMutex, 'a token that falls after a window', `${turns(20)}; A+ 900 901 #50; A- 902 903; B+ 950 960 #49`],
  [readWriteLock, 'a writer beside a reader', 'A+ 0 1 r; W+ 2 3; A- 4 5'],
  [readWriteLock, 'a reader beside a writer', 'W+ 0 1; A+ 2 3 r; W- 4 5'],
  [readWriteLock, 'two writers', 'V+ 0 1; W+ 2 3'],
  [readWriteLock, 'a reader that is refused beside readers', 'A+ 0 1 r; B+ 2 3 r no'],
  [fenced(readWriteLock), 'readers with a token that falls', 'A+ 0 1 r #2; B+ 2 3 r #1'],
  [semaphore(2), 'three holders of two permits', 'A+ 0 1 r; B+ 2 3 r; C+ 4 5 r; A- 6 7'],
  [semaphore(3), 'four permits of three', 'A+ 0 1 r x2; B+ 2 3 r x2'],
  [semaphore(2), 'a refusal while a permit is free', 'A+ 0 1 r; B+ 2 3 r no'],
]

/** Leases that follow each other, with rising tokens. */
function turns(count: number): string {
  return Array.from({ length: count }, (_, at) => {
    const name = uniqueLetter(at)
    return `${name}+ ${at * 8} ${at * 8 + 1} #${at + 1}; ${name}- ${at * 8 + 2} ${at * 8 + 3}`
  }).join('; ')
}

function uniqueLetter(at: number): string {
  return String.fromCodePoint(0x4e00 + at)
}

describe('a correct history is linearizable', () => {
  test.each(GOOD)('$name: %s', (model, _, text) => {
    expect(checkHistory(model, history(text))).toMatchObject({ verdict: 'linearizable', texts: [] })
  })
})

describe('a history that no correct lock could have made is a violation', () => {
  test.each(BAD)('$name: %s', (model, _, text) => {
    const { verdict, texts } = checkHistory(model, history(text))
    expect(verdict).toBe('violation')
    expect(texts).not.toEqual([])
  })

  test('and its text says who held the lock, and what has no place', () => {
    const { texts } = checkHistory(fencedMutex, history('A+ 0 1 #1; A- 9 ?; B+ 2 3 #2'))
    expect(texts).toEqual([
      'after 1:A+, it is held by A, and the last token is 1: 3:B+ (granted with token 2) has no place',
    ])
  })
})

describe('a long history', () => {
  test('is cut where no operation is open and no lease is held', () => {
    expect(checkHistory(fencedMutex, history(turns(300)))).toEqual({
      verdict: 'linearizable',
      windows: 300,
      texts: [],
    })
  })

  test('is not cut at a release without an answer if claims were refused', () => {
    const operations = history('A+ 0 1; A- 2 ?; B+ 3 4 no; C+ 5 6')
    expect(checkHistory(mutex, operations)).toMatchObject({ verdict: 'linearizable', windows: 1 })
  })

  test('with more operations in a window than the bound is undecided, never passed', () => {
    const found = checkHistory(mutex, history('A+ 0 9; A- 1 9; B+ 0 9; B- 1 9'), { operations: 3 })
    expect(found).toEqual({ verdict: 'undecided', windows: 1, texts: ['4 operations are more than 3'] })
  })

  test('with more configurations than the bound is undecided, never passed', () => {
    const found = checkHistory(mutex, history('A+ 0 9; A- 1 9; B+ 0 9; B- 1 9'), { configurations: 2 })
    expect(found).toMatchObject({ verdict: 'undecided', texts: ['no verdict after 2 configurations'] })
  })

  test('in which one window is undecided and another a violation is a violation', () => {
    const operations = history('A+ 0 9; A- 1 9; B+ 0 9; B- 1 9; C+ 20 21; D+ 22 23')
    expect(checkHistory(mutex, operations, { operations: 3 })).toMatchObject({ verdict: 'violation', windows: 2 })
  })

  test('of twenty waiters that are always in the queue is decided without a cut', () => {
    const text = Array.from({ length: 400 }, (_, at) => {
      const name = uniqueLetter(at)
      return `${name}+ ${Math.max(0, at - 20) * 10} ${at * 10 + 3} #${at + 1}; ${name}- ${at * 10 + 8} ?`
    }).join('; ')
    expect(checkHistory(fencedMutex, history(text))).toMatchObject({ verdict: 'linearizable', windows: 1 })
    expect(checkHistory(mutex, history(text))).toMatchObject({ verdict: 'linearizable', windows: 1 })
  })
})

describe('the leases of a run', () => {
  const lease = (token: number, knownAt: number, heldUntil?: number, more: object = {}): LeaseHistory => ({
    id: `${token}`,
    name: 'order',
    token,
    ttlMs: 1_000,
    askedAt: knownAt - 2,
    knownAt,
    ...(heldUntil !== undefined && { heldUntil }),
    end: 'released',
    ...more,
  })

  test('are judged for each lock name alone', () => {
    const leases = [lease(1, 0, 10), lease(1, 5, 15, { id: 'other', name: 'invoice' })]
    expect(checkLeases(leases)).toEqual({ names: 2, operations: 4, windows: 2, violations: [], undecided: [] })
  })

  test('may follow each other, but may not overlap', () => {
    expect(checkLeases([lease(1, 0, 10), lease(2, 10, 20)]).violations).toEqual([])
    expect(checkLeases([lease(1, 0, 10), lease(2, 9, 20)]).violations).toHaveLength(1)
  })

  test('may not have a token that falls', () => {
    expect(checkLeases([lease(2, 0, 10), lease(1, 20, 30)]).violations).toHaveLength(1)
  })

  test('say nothing if their holder never saw them held', () => {
    expect(checkLeases([lease(1, 9, undefined, { askedAt: 0 }), lease(2, 5, 20)]).violations).toEqual([])
  })

  test('may end with the server that was lost, unless a replica had confirmed them', () => {
    const losses = [{ fromMs: 5, toMs: 6 }]
    const second = lease(2, 9, 20)
    expect(checkLeases([lease(1, 0, 10), second], losses).violations).toEqual([])
    expect(checkLeases([lease(1, 0, 10, { confirmed: true }), second], losses).violations).toHaveLength(1)
  })

  test('may end with a loss of their client, and not with that of another', () => {
    const leases = [lease(1, 0, 10, { id: '4-1.1' }), lease(2, 9, 20)]
    expect(checkLeases(leases, [{ fromMs: 5, toMs: 6, clients: [4] }]).violations).toEqual([])
    expect(checkLeases(leases, [{ fromMs: 5, toMs: 6, clients: [3] }]).violations).toHaveLength(1)
  })

  test('are readers and permits if they say so', () => {
    const read = { mode: 'shared' as const }
    const permits = { ...read, limit: 2, permits: 1 }
    const three = (more: object): LeaseHistory[] => [1, 2, 3].map((at) => lease(at, at * 5, 90, more))
    expect(checkLeases(three(read)).violations).toEqual([])
    expect(checkLeases(three(permits)).violations).toHaveLength(1)
    expect(checkLeases(three(permits).slice(1)).violations).toEqual([])
  })
})
