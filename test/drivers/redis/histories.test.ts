import assert from 'node:assert/strict'
import fc from 'fast-check'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { COUNTER } from '../../../src/drivers/redis/keys.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { CLIENTS, claimTerms, RedisPlay, steps, type Terms } from '../../harness/redis-play.ts'
import { type Server, startServers } from '../../harness/servers.ts'

/**
 * Random histories of a few clients on a few locks. After every step, the answers and the data of the server must match
 * the model. The model does not distinguish the fast path of leases.lua from the slow one, so the test keeps the two
 * equal. `SEED=` replays a history.
 */
const HISTORIES = Number(process.env['HISTORIES'] ?? 90)
const SEED = Number(process.env['SEED'] ?? 5)

let server: Server
let control: Redis
beforeAll(async () => {
  server = (await startServers({ redis: 1 })).redis[0] as Server
  control = new Redis(server.url)
})
afterAll(async () => {
  control.disconnect()
  await server[Symbol.asyncDispose]()
})

describe('redis: histories', () => {
  for (const counter of ['kept', 'lost', 'ahead'] as const) {
    it(`random histories match the model, leave nothing behind, and tokens rise; counter ${counter}`, async () => {
      const property = fc.asyncProperty(
        claimTerms,
        fc.array(stepsWithCounter, { minLength: 10, maxLength: 40, size: 'max' }),
        (terms, history) => play(counter, terms, history),
      )
      await fc.assert(property, { numRuns: Math.ceil(HISTORIES / 3), seed: SEED, endOnFailure: false })
    }, 120_000)
  }
})

const stepsWithCounter = fc.oneof(
  { weight: 16, arbitrary: steps },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('counter' as const), how: fc.nat({ max: 2 }) }) },
)
type AnyStep = typeof stepsWithCounter extends fc.Arbitrary<infer T> ? T : never

async function play(counter: 'kept' | 'lost' | 'ahead', terms: Terms, history: readonly AnyStep[]): Promise<void> {
  await control.flushall()
  const clients = Array.from({ length: CLIENTS }, () => new Redis(server.url))
  const drivers = clients.map((each) => redisDriver({ client: each, onWarning() {} }))
  try {
    const played = new RedisPlay(control, drivers, terms)
    played.renewsLongLists = true
    for (const step of history) {
      if (step.kind === 'counter') await spoilCounter(counter, step.how)
      else await played.step(step)
      await played.compare()
    }
    await played.end()
    assert.deepEqual(
      (await control.keys('*')).filter((key) => key !== COUNTER),
      [],
    )
  } finally {
    for (const driver of drivers) await driver.close()
    for (const each of clients) each.disconnect()
  }
}

/** A missing or invalid counter must not matter while the clock runs. One ahead of the clock continues from there. */
async function spoilCounter(counter: 'kept' | 'lost' | 'ahead', how: number): Promise<void> {
  if (counter === 'lost') {
    await control.del(COUNTER)
    if (how === 1) await control.rpush(COUNTER, 'of another type')
    if (how === 2) await control.set(COUNTER, 'not a number')
  } else if (counter === 'ahead') {
    const [seconds, us] = (await control.time()) as unknown as [string, string]
    const nowUs = Number(seconds) * 1_000_000 + Number(us)
    const last = Number((await control.get(COUNTER)) ?? 0)
    await control.set(COUNTER, `${Math.max(last, nowUs) + 3_600_000_000}`)
  }
}
