import fc from 'fast-check'
import type { Draw } from '../../draw.ts'
import { drawn, ODD_TEXTS } from '../odd.ts'

/** The error of a getter or a callback of the caller. It may reach the caller as it is. */
export class CallersError extends Error {}

/** A value that a caller could pass by mistake. */
export function oddValue(draw: Draw): unknown {
  if (draw.chance(0.2)) return drawn(draw, ANYTHING)
  if (draw.chance(0.2)) return draw.one(ODD_TEXTS)
  return draw.one(SPECIAL)()
}

const ANYTHING = fc.anything({
  ...{ withBigInt: true, withDate: true, withMap: true, withSet: true, withNullPrototype: true, withSparseArray: true },
  ...{ withTypedArray: true, withObjectString: true, withBoxedValues: true, maxDepth: 3 },
})

const throws = (): never => {
  throw new CallersError('from a getter of the caller')
}

const SPECIAL: readonly (() => unknown)[] = [
  ...[undefined, null, Number.NaN, 0, -0, -1, 0.5, 1, 1e9, 1e300, 2 ** 53, -(2 ** 63), '', '30', 'x'.repeat(300)].map(
    (value) => () => value,
  ),
  ...[Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, true, false, 7n, 2n ** 70n, Symbol('odd')].map(
    (value) => () => value,
  ),
  () => [],
  () => [[]],
  () => ({}),
  () => Object.create(null) as unknown,
  () => () => 7,
  () => new Date(Number.NaN),
  () => new Map([['a', 1]]),
  () => Promise.resolve('late'),
  () => /x/g,
  () => new Error('as a value'),
  () => new Proxy({}, {}),
  () => revoked({}),
  () => revoked([]),
  () => revoked(() => 7),
  () => new Proxy({}, { get: throws, ownKeys: throws, getPrototypeOf: throws, has: throws }),
  () => new Proxy([], { get: throws }),
  () => Object.defineProperty({}, 'a', { get: throws, enumerable: true }),
  () => ({ toJSON: throws }),
  () => ({ toString: throws, valueOf: throws }),
  () => ({ [Symbol.toPrimitive]: throws }),
  () => ({ constructor: null }),
  () => ({ constructor: { name: 7 } }),
  () => Object.defineProperty({}, 'constructor', { get: throws }),
  () => ({ length: -1 }),
  () => Array(10_000).fill('x'),
  () => 'x'.repeat(2_000_000),
  () => cyclic(),
  () => deep(5_000),
  () => AbortSignal.abort('odd'),
  () => ({ aborted: false, addEventListener: 7 }),
  () => JSON.parse('{"__proto__":{"polluted":true}}') as unknown,
]

/** As metadata, or as the value of an election. */
export function oddMetadata(draw: Draw): unknown {
  if (draw.chance(0.3)) return oddValue(draw)
  if (draw.chance(0.2)) return { a: oddValue(draw), b: [1, { c: oddValue(draw) }] }
  return draw.one(METADATA)()
}

const METADATA: readonly (() => unknown)[] = [
  () => ({ ok: true, list: [1, 'x', null] }),
  () => deep(31),
  () => deep(33),
  () => cyclic(),
  () => ({ text: 'x'.repeat(16_000) }),
  () => ({ text: 'x'.repeat(17_000) }),
  () => ({ ['k'.repeat(20_000)]: 1 }),
  () => ({ '\ud800': 1 }),
  () => ({ nul: '\0' }),
  () => ({ big: 1n }),
  () => ({ nan: Number.NaN }),
  () => ({ at: new Date() }),
  () => ({ toJSON: () => 7 }),
  () => ({ toJSON: throws }),
  () => ({ fn() {} }),
  () => ({ sparse: Object.assign([], { 3: 1 }) }),
  () => Object.defineProperty({}, 'a', { get: throws, enumerable: true }),
  () => changing([1, 1n]),
  () => changing([1, Number.NaN]),
  () => changing([{ a: 1 }, undefined]),
  () => changing([1, 'x'.repeat(20_000)]),
  () => JSON.parse('{"__proto__":{"polluted":true}}') as unknown,
  () => Object.fromEntries(Array.from({ length: 5_000 }, (_, at) => [`k${at}`, at])),
]

/** A property with another value each time it is read. */
function changing(values: readonly unknown[]): unknown {
  let reads = 0
  return Object.defineProperty({}, 'a', { enumerable: true, get: () => values[reads++ % values.length] })
}

function revoked(target: object): unknown {
  const { proxy, revoke } = Proxy.revocable(target, {})
  revoke()
  return proxy
}

function cyclic(): unknown {
  const value: Record<string, unknown> = {}
  value['self'] = [value]
  return value
}

function deep(levels: number): unknown {
  let value: unknown = 1
  for (let level = 0; level < levels; level += 1) value = level % 2 === 0 ? { a: value } : [value]
  return { a: value }
}
