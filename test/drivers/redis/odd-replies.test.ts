import { describe, expect, it } from 'vitest'
import type { Claim } from '../../../src/core/driver.ts'
import { StoreError } from '../../../src/core/errors.ts'
import type { RedisConnection } from '../../../src/drivers/redis/connection.ts'
import { readAcquire, readWaiter } from '../../../src/drivers/redis/format.ts'
import { inspectNames } from '../../../src/drivers/redis/inspect.ts'
import { lockNameIn } from '../../../src/drivers/redlock/release-broadcast.ts'

/** Replies and messages that no script sends. Found by chaos/fuzz. */

const claim: Claim = {
  ...{ lockName: 'name', claimId: 'c', holderId: 'h', mode: 'exclusive', permits: 1 },
  ...{ ttlMs: 500, waiterTtlMs: 0 },
}

describe('redis: a reply that no script sends is an error, never a grant or a mark', () => {
  it.each([
    [['y', 'no JSON']],
    [['y', '["c",-1,1,500,"h"]']],
    [['y', '["c",1e400,1,500,"h"]']],
    [['y', '["c","7",1,500,"h"]']],
    [['y', 7]],
    [['y', null]],
    [['y']],
    // Redlock would propose such a mark to all nodes.
    [['b', 'NaN']],
    [['b', 'x']],
    [['b', 1e300]],
    [['b', -1]],
    [['b']],
    [['f', 'Infinity']],
    [['f']],
    [['n', 7, 8, 9, 10]],
    [['n', '["c",1,1,500,"h"]', 'x', 0, 0]],
    [['z', '1']],
    [[]],
    [{}],
    [null],
    ['x'],
    [-7],
  ])('%j', (reply) => {
    expect(readAcquire(claim, 1, reply)).toBeInstanceOf(StoreError)
  })
})

describe('redis: an inspection that no script sends is an error, and never a part of a cursor', () => {
  it.each([
    [null],
    ['OK'],
    [[null]],
    [[['', -2, [], []]]],
    [[['', -2, [], [], 7]]],
    [[['', -2, [], [], ['x']]]],
    [[['', -2, 7, [], '']]],
    [[['', -2, [['x']], [], '']]],
    [[[7, -2, [], [], '']]],
  ])('%j', async (reply) => {
    const connection = { cluster: false, command: async () => reply } as unknown as RedisConnection
    await expect(inspectNames(connection, 'lock:', ['name'])).rejects.toBeInstanceOf(StoreError)
  })
})

it('redis: a waiter whose text another client wrote is shown with what is known of it', () => {
  for (const text of ['', 'no JSON', 'null', '7', '[]', '[1,2,3]', '{"a":1}', '[1,2,0,0,1,1,1,"c","no JSON"]']) {
    const waiter = readWaiter('name', 'no JSON', text)
    expect(waiter).toMatchObject({ lockName: 'name', claimId: 'no JSON', holderId: 'another client' })
  }
})

it('redlock: a message that is longer than any release is ignored, because messages are remembered', () => {
  expect(lockNameIn(JSON.stringify(['name', 'c', 'id']))).toBe('name')
  expect(lockNameIn(JSON.stringify(['\u0001'.repeat(255), '\u0001'.repeat(255), 'x'.repeat(40)]))).toBeDefined()
  expect(lockNameIn(JSON.stringify(['name', 'c', 'x'.repeat(5_000)]))).toBeUndefined()
})
