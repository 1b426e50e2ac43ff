import assert from 'node:assert/strict'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, it } from 'vitest'
import {
  lockKeys,
  plainOfData,
  rateKey,
  routingKey,
  siblingKey,
  slotCounter,
  slotOf,
} from '../../../src/drivers/redis/keys.ts'
import { type Server, startRedis } from '../../harness/servers.ts'
import { askRedis } from '../../harness/wire.ts'

/** Names with many characters that matter for hash tags. */
const lockNames = fc.oneof(
  fc.string({ unit: 'binary', minLength: 1, maxLength: 40 }).filter((name) => !name.includes('\0')),
  fc.string({ unit: fc.constantFrom('{', '}', 'a', ':', 'ü', '🔒'), minLength: 1, maxLength: 12 }),
)
const prefixes = fc.constantFrom('lock:', '', '{', '}', '{a}', 'x{}')

describe('redis keys', () => {
  it('all keys of a lock are in the slot of its plain key', () => {
    fc.assert(
      fc.property(prefixes, lockNames, (prefix, lockName) => {
        const { plain, data, order } = lockKeys(prefix, lockName)
        const slot = slotOf(plain)
        assert.equal(plain, prefix + lockName)
        const siblings = [data, order, siblingKey(plain, 'f'), rateKey(prefix, lockName, '10/3600000000/10')]
        for (const key of [...siblings, slotCounter(slot)]) assert.equal(slotOf(key), slot, key)
      }),
      { numRuns: 2_000 },
    )
  })

  it('commands are routed by a key without an empty tag, which clients hash in different ways', () => {
    fc.assert(
      fc.property(prefixes, lockNames, (prefix, lockName) => {
        const route = routingKey(prefix + lockName)
        assert.equal(slotOf(route), slotOf(prefix + lockName))
        assert.ok(!route.includes('{}'))
      }),
      { numRuns: 2_000 },
    )
  })

  it('no two locks share a key, and the data key names its lock', () => {
    fc.assert(
      fc.property(lockNames, lockNames, (one, other) => {
        const [a, b] = [lockKeys('', one), lockKeys('', other)]
        assert.equal(plainOfData(a.data), a.plain)
        if (one === other) return
        const rates = [one, other].flatMap((name) => ['1/1000/1', '1/1000/10'].map((id) => rateKey('', name, id)))
        const all = [a.data, a.order, b.data, b.order, ...rates]
        assert.equal(new Set(all).size, 8)
      }),
      { numRuns: 2_000 },
    )
  })

  describe('beside a server', () => {
    let server: Server

    beforeAll(async () => {
      server = await startRedis({ settings: { 'cluster-enabled': 'yes' } })
    })

    afterAll(async () => {
      await server[Symbol.asyncDispose]()
    })

    it('the slot is the same as the server computes', async () => {
      await fc.assert(
        fc.asyncProperty(lockNames, async (key) => {
          assert.equal(slotOf(key), await askRedis(server, 'CLUSTER', 'KEYSLOT', key))
        }),
        { numRuns: 200 },
      )
    })
  })
})
