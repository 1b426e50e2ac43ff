import { describe, expect, it } from 'vitest'
import { InvalidArgumentError } from '../../src/index.ts'
import { nameFromTemplate } from '../../src/integrations/nestjs/locked.ts'

const nameOf = (template: unknown, ...args: unknown[]): string => nameFromTemplate(template, 'Orders.ship')(args)

describe('a template of a lock name', () => {
  it.each([
    ['cron:cleanup', 'cron:cleanup', []],
    ['order:{0}', 'order:123', ['123']],
    ['{1}/{0}', 'b/a', ['a', 'b']],
    ['order:{0.id}', 'order:7', [{ id: 7 }]],
    ['order:{0.customer.id}:{1}', 'order:7:-1', [{ customer: { id: 7n } }, -1]],
    ['häfen:{0.größe}', 'häfen:⚓️', [{ größe: '⚓️' }]],
    ['a:{0}', 'a:{1}', ['{1}', 'no second round']],
  ])('%s makes %s, from its arguments', (template, name, args) => {
    expect(nameOf(template, ...args)).toBe(name)
  })

  it.each([
    '',
    'order:{}',
    'order:{id}',
    'order:{0',
    'order:0}',
    'order:{0.}',
    'order:{0..id}',
    'order:{0.a b}',
    'order:{{0}}',
    'order:{-1}',
    'order:{100}',
    'a\0b',
    'x'.repeat(256),
    7,
    undefined,
  ])('%j is refused when the class is defined', (template) => {
    expect(() => nameFromTemplate(template, 'Orders.ship')).toThrow(/the template of @Locked on Orders\.ship must be /)
  })
})

describe('an argument', () => {
  const { proxy: revoked, revoke } = Proxy.revocable({}, {})
  revoke()

  it.each([
    ['undefined', undefined],
    ['null', null],
    ['an empty string', ''],
    ['an object', { id: 1 }],
    ['an object that becomes a string', { toString: () => 'id' }],
    ['an array', ['1']],
    ['a symbol', Symbol('id')],
    ['a function', () => 'id'],
    ['a boolean', true],
    ['NaN', Number.NaN],
    ['a fraction', 1.5],
    ['a number that is not exact', 2 ** 53],
    ['a line end', 'a\nb'],
    ['a NUL', 'a\0b'],
    ['an escape sequence', '\u001b[2J'],
    ['a C1 control character', 'a\u009bb'],
    ['a line separator', 'a\u2028b'],
    ['a lone surrogate', '\ud800'],
    ['a string that is too long', 'x'.repeat(100_000)],
    ['a proxy that was revoked', revoked],
  ])('that is %s is refused, with its place and the rule', (_, value) => {
    const refused = (call: () => unknown, place: string): void => {
      expect(call).toThrow(InvalidArgumentError)
      expect(call).toThrow(`${place} of Orders.ship must be a string of 1 to 255 characters without control characters`)
    }
    refused(() => nameOf('order:{0}', value), '{0}')
    refused(() => nameOf('order:{1.id}', 'ok', { id: value }), '{1.id}')
  })

  it('that is missing, or lacks the property, is refused', () => {
    expect(() => nameOf('order:{0}')).toThrow('{0} of Orders.ship must be')
    expect(() => nameOf('order:{0.id.part}', { id: null })).toThrow('{0.id.part} of Orders.ship must be')
    expect(() => nameOf('order:{0.id}', undefined)).toThrow('{0.id} of Orders.ship must be')
  })

  it('that makes the whole name too long is refused', () => {
    expect(() => nameOf('order:{0}:{1}', 'x'.repeat(200), 'y'.repeat(200))).toThrow(
      /the lock name of Orders\.ship must be a string of 1 to 255 characters/,
    )
  })
})
