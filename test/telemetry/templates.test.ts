import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import { MAX_TEMPLATES } from '../../src/core/limits.ts'
import { InvalidArgumentError } from '../../src/index.ts'
import { OTHER, templateFinder } from '../../src/telemetry/templates.ts'

describe('a pattern', () => {
  const templateOf = templateFinder([
    'order:{id}',
    'user:{id}:profile',
    'day:{y}-{m}-{d}',
    'cron',
    'a.b+c:{x}',
    '{any}!',
  ])

  it.each([
    ['order:123', 'order:{id}'],
    ['order:', OTHER],
    ['order:1:2', OTHER],
    ['my order:1', OTHER],
    ['user:7:profile', 'user:{id}:profile'],
    ['user:7:password', OTHER],
    ['day:2026-08-01', 'day:{y}-{m}-{d}'],
    ['day:2026-08-', OTHER],
    ['day:--', OTHER],
    ['day:a--b-c', 'day:{y}-{m}-{d}'],
    ['cron', 'cron'],
    ['cronx', OTHER],
    ['a.b+c:x', 'a.b+c:{x}'],
    ['aXbbc:x', OTHER],
    ['!', OTHER],
    ['!!', '{any}!'],
  ])('gives %j the template %j', (name, template) => {
    expect(templateOf(name)).toBe(template)
  })

  it('that comes first wins', () => {
    expect(templateFinder(['{a}', 'b'])('b')).toBe('{a}')
  })

  it('has no name that takes long, however hostile', () => {
    const hostile = templateFinder(['{a}-{b}-{c}-{d}-{e}-{f}-{g}-{h}!'])
    // A regular expression would try about 255⁷ ways. The test ends by its timeout if this does.
    expect(hostile('-'.repeat(255))).toBe(OTHER)
  })

  it.each([
    [['{a}{b}']],
    [['']],
    [['x\0']],
    [[7]],
    ['order:{id}'],
    [Array.from({ length: MAX_TEMPLATES + 1 }, (_, index) => `n${index}`)],
  ])('list %j is refused', (templates) => {
    expect(() => templateFinder(templates)).toThrow(InvalidArgumentError)
  })

  it('matches exactly the names that the same regular expression matches', () => {
    const piece = fc.constantFrom('a', 'b', '-', ':', '{x}')
    const texts = fc.array(piece, { minLength: 1, maxLength: 6 }).map((parts) => parts.join(''))
    const names = fc
      .array(fc.constantFrom('a', 'b', '-', ':'), { minLength: 1, maxLength: 9 })
      .map((all) => all.join(''))
    fc.assert(
      fc.property(texts, names, (pattern, name) => {
        fc.pre(!pattern.includes('{x}{x}'))
        const expected = new RegExp(`^${pattern.replaceAll('{x}', '[^:]+')}$`).test(name)
        expect(templateFinder([pattern])(name)).toBe(expected ? pattern : OTHER)
      }),
      { numRuns: 2_000 },
    )
  })
})

describe('a function', () => {
  it('has at most the stated number of results, and "other"', () => {
    const templateOf = templateFinder((name: string) => name)
    const results = new Set(Array.from({ length: 10_000 }, (_, index) => templateOf(`user-${index}`)))
    expect(results.size).toBe(MAX_TEMPLATES + 1)
    expect(results).toContain(OTHER)
    expect(templateOf('user-0')).toBe('user-0')
  })

  it.each([[undefined], [7], [''], ['x'.repeat(256)], ['\ud800'], ['a\0b'], [{ toString: () => 'x' }]])(
    'that returns %j gives "other"',
    (result) => {
      expect(templateFinder(() => result)('name')).toBe(OTHER)
    },
  )

  it('that throws gives "other", and causes one warning', () => {
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    const templateOf = templateFinder(() => {
      throw new Error('in the function')
    })
    expect([templateOf('a'), templateOf('b')]).toEqual([OTHER, OTHER])
    const calls = warn.mock.calls.length
    vi.restoreAllMocks()
    expect(calls).toBe(1)
  })
})

it('without templates, every name is "other"', () => {
  expect(templateFinder(undefined)('order:1')).toBe(OTHER)
})
