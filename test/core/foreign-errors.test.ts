import { expect, it } from 'vitest'
import { messageOf, safeCause, textOf } from '../../src/core/foreign-errors.ts'
import { connectionTrouble } from '../../src/drivers/shared/connection-trouble.ts'
import { unreadableValues } from '../harness/unreadable.ts'

it('a message of a server is cut, wherever it is kept', () => {
  const error = Object.assign(new Error('x'.repeat(1_000_000)), { detail: 'y'.repeat(1_000_000) })
  expect(messageOf(error).length).toBeLessThan(2_100)
  expect(messageOf(error)).toMatch(/… \(1000000 characters\)$/)
  const cause = safeCause(error) as Error & { detail: string }
  expect(cause.message.length).toBeLessThan(2_100)
  expect(cause.detail.length).toBeLessThan(2_100)
  expect(cause.stack?.length).toBeLessThan(4_100)
})

it('a password where the message is cut is not shown', () => {
  for (const before of [1_970, 1_980, 1_990, 1_999, 19_985, 39_985]) {
    const error = new Error(`${'x'.repeat(before)} redis://me:hunter2@host ${'y'.repeat(50_000)}`)
    expect(messageOf(error)).not.toContain('hunter')
    expect(String(safeCause(error).stack)).not.toContain('hunter')
  }
})

it.each(Object.entries(unreadableValues()))('%s, can be read, kept and examined', (_, thrown) => {
  expect(textOf(thrown)).toMatch(/./)
  expect(messageOf(thrown)).toMatch(/./)
  expect(safeCause(thrown)).toBeInstanceOf(Error)
  expect(safeCause(thrown).message).toMatch(/./)
  expect(safeCause({ cause: thrown })).toBeInstanceOf(Error)
  expect(safeCause(new Error('outer', { cause: thrown })).message).toBe('outer')
  expect(safeCause(new AggregateError([thrown], 'several')).message).toBe('several')
  expect(connectionTrouble(thrown)).toBeUndefined()
  expect(connectionTrouble({ errors: [thrown] })).toBeUndefined()
})
