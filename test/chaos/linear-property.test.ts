import fc from 'fast-check'
import { expect, test } from 'vitest'
import { fenced, fencedMutex, mutex, type Operation, readWriteLock, semaphore } from '../../chaos/linear/model.ts'
import { checkHistory } from '../../chaos/linear/windows.ts'

const MODELS = {
  mutex: { model: mutex, readers: false, permits: 1, isFenced: false },
  'fenced mutex': { model: fencedMutex, readers: false, permits: 1, isFenced: true },
  'read-write lock': { model: readWriteLock, readers: true, permits: Number.POSITIVE_INFINITY, isFenced: false },
  'fenced read-write lock': {
    model: fenced(readWriteLock),
    readers: true,
    permits: Number.POSITIVE_INFINITY,
    isFenced: true,
  },
  'semaphore of 2': { model: semaphore(2), readers: true, permits: 2, isFenced: false },
} as const

type Rules = (typeof MODELS)[keyof typeof MODELS]

/** A few operations of three leases on a small clock, so that ties, overlaps and lost answers are frequent. */
function histories({ readers }: Rules): fc.Arbitrary<Operation[]> {
  const times = fc.record({
    beginMs: fc.integer({ min: 0, max: 8 }),
    lastsMs: fc.option(fc.integer({ min: 0, max: 5 }), { freq: 5 }),
  })
  const acquire = fc.record({
    kind: fc.constant('acquire' as const),
    mode: readers ? fc.constantFrom('shared' as const, 'exclusive' as const) : fc.constant('exclusive' as const),
    permits: fc.integer({ min: 1, max: 2 }),
    answer: fc.oneof({ weight: 4, arbitrary: fc.constant('granted' as const) }, fc.constant('refused' as const)),
    token: fc.integer({ min: 1, max: 4 }),
  })
  const release = fc.record({
    kind: fc.constant('release' as const),
    answer: fc.oneof({ weight: 4, arbitrary: fc.constant(true) }, fc.constant(false)),
  })
  const oneLease = fc.tuple(fc.option(acquire, { freq: 9 }), fc.array(release, { maxLength: 2 }))
  const three = fc.array(oneLease, { maxLength: 3 }).map((leases) =>
    leases.flatMap(([one, releases], at) => {
      const what = one === null ? releases : [one, ...releases]
      return what.map((each) => ({ lease: 'ABC'[at] ?? '', what: each }))
    }),
  )
  return fc.tuple(three, fc.array(times, { minLength: 9, maxLength: 9 })).map(([all, when]) =>
    all.slice(0, 7).map(({ lease, what }, at): Operation => {
      const id = `${at}`
      const { beginMs, lastsMs } = when[at] ?? { beginMs: 0, lastsMs: 0 }
      if (lastsMs !== null) {
        const { token, ...rest } = { token: 0, ...what }
        const isGrant = what.kind === 'acquire' && what.answer === 'granted'
        return { id, lease, what: isGrant ? { ...what, token } : rest, beginMs, endMs: beginMs + lastsMs }
      }
      const { answer: _, token: __, ...rest } = { token: 0, ...what }
      return { id, lease, what: rest, beginMs }
    }),
  )
}

/** Tries every order of every subset that has all answered operations. */
function someOrderWorks(rules: Rules, operations: readonly Operation[], done: readonly Operation[] = []): boolean {
  const open = operations.filter((each) => !done.includes(each))
  if (open.every(({ endMs }) => endMs === undefined) && executes(rules, done)) return true
  return open.some((next) => {
    const isTooEarly = open.some(({ endMs }) => endMs !== undefined && endMs < next.beginMs)
    return !isTooEarly && someOrderWorks(rules, operations, [...done, next])
  })
}

/** Executes a lock by its definition, without the model under test. */
function executes({ readers, permits, isFenced }: Rules, order: readonly Operation[]): boolean {
  const inside = new Map<string, { isWriter: boolean; permits: number }>()
  let token = 0
  for (const { lease, what, endMs } of order) {
    const isAnswered = endMs !== undefined
    if (what.kind === 'release') {
      const was = inside.delete(lease)
      // Without an answer, a release of a lease that is not held is the same as none.
      if (isAnswered && was !== what.answer) return false
      continue
    }
    const mine = { isWriter: what.mode !== 'shared', permits: what.permits ?? 1 }
    const others = [...inside.values()]
    const out = others.reduce((sum, each) => sum + each.permits, mine.permits)
    const isWithin = permits === Number.POSITIVE_INFINITY || permits === 1 || out <= permits
    const isAlone = others.length === 0
    const isBeside = readers && permits !== 2 && !mine.isWriter && others.every((each) => !each.isWriter)
    const isFree = !inside.has(lease) && (permits === 2 ? isWithin : isAlone || isBeside)
    if (what.answer === 'refused') {
      if (isFree) return false
      continue
    }
    if (!isFree) {
      if (isAnswered) return false
      continue
    }
    inside.set(lease, mine)
    if (isFenced && what.token !== undefined) {
      if (what.token <= token) return false
      token = what.token
    }
  }
  return true
}

test.each(Object.entries(MODELS))('%s: the search agrees with trying every order', (_, rules) => {
  const verdicts = new Map<string, number>()
  fc.assert(
    fc.property(histories(rules), (operations) => {
      const expected = someOrderWorks(rules, operations) ? 'linearizable' : 'violation'
      verdicts.set(expected, (verdicts.get(expected) ?? 0) + 1)
      expect(checkHistory(rules.model, operations).verdict).toBe(expected)
    }),
    { numRuns: 1_000, seed: 16 },
  )
  // Neither verdict is so rare that the comparison says little.
  expect(Math.min(verdicts.get('linearizable') ?? 0, verdicts.get('violation') ?? 0)).toBeGreaterThan(100)
})
