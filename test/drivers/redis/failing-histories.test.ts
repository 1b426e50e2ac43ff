import assert from 'node:assert/strict'
import fc from 'fast-check'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { connectionOf } from '../../../src/drivers/redis/client.ts'
import { redisDriverOn } from '../../../src/drivers/redis/driver.ts'
import { COUNTER } from '../../../src/drivers/redis/keys.ts'
import { CLIENTS, claimTerms, RedisPlay, type Step, steps, type Terms } from '../../harness/redis-play.ts'
import { type Server, startRedis } from '../../harness/servers.ts'

/**
 * Random histories in which the server refuses writes for a while: it is demoted, lacks replicas, or is out of memory.
 * A call that fails has done nothing, and every grant that is announced has been written. `SEED=` replays a history.
 */
const HISTORIES = Number(process.env['HISTORIES'] ?? 24)
const SEED = Number(process.env['SEED'] ?? 5)

let server: Server
let control: Redis
let ear: Redis
/** What was published on the channels of the clients since it was last read. */
const heard: unknown[] = []
let end = (): void => {}
beforeAll(async () => {
  server = await startRedis()
  control = new Redis(server.url)
  ear = new Redis(server.url)
  ear.on('pmessage', (_pattern: string, _channel: string, text: string) => {
    heard.push(JSON.parse(text))
    if (text === '"end"') end()
  })
  // A pattern does not count as a subscriber of the channel: waiters whose client is gone stay gone.
  await ear.psubscribe('holdfast:wake:*')
})
afterAll(async () => {
  ear.disconnect()
  control.disconnect()
  await server[Symbol.asyncDispose]()
})

const FAULTS = {
  READONLY: {
    begin: () => control.call('REPLICAOF', '127.0.0.1', '1'),
    end: () => control.call('REPLICAOF', 'NO', 'ONE'),
  },
  NOREPLICAS: {
    begin: () => control.config('SET', 'min-replicas-to-write', '1'),
    end: () => control.config('SET', 'min-replicas-to-write', '0'),
  },
  OOM: {
    begin: () => control.config('SET', 'maxmemory', '1'),
    end: () => control.config('SET', 'maxmemory', '0'),
  },
} as const

describe('redis: histories with failing writes', () => {
  for (const [error, fault] of Object.entries(FAULTS)) {
    it(`${error}: nothing is announced that was not written, waiters keep their order, and tokens rise`, async () => {
      const seen = { failures: 0, announced: 0 }
      const history = fc.array(fc.oneof({ weight: 8, arbitrary: steps }, { weight: 1, arbitrary: toggle }), {
        minLength: 40,
        maxLength: 60,
        size: 'max',
      })
      const property = fc.asyncProperty(claimTerms, history, async (terms, all) => {
        try {
          await play(terms, all, { error: new RegExp(error), ...fault }, seen)
        } finally {
          await fault.end()
        }
      })
      await fc.assert(property, { numRuns: Math.ceil(HISTORIES / 3), seed: SEED, endOnFailure: true })
      assert.ok(seen.failures > 0, `${seen.failures} calls failed`)
      assert.ok(seen.announced > 0, `${seen.announced} grants were announced`)
    }, 120_000)
  }
})

const toggle = fc.record({ kind: fc.constant('fault' as const) })

interface Fault {
  readonly error: RegExp
  begin(): Promise<unknown>
  end(): Promise<unknown>
}

async function play(
  terms: Terms,
  history: readonly (Step | { kind: 'fault' })[],
  fault: Fault,
  seen: { failures: number; announced: number },
): Promise<void> {
  await control.flushall()
  await allHeard() // what the end of the last history has published
  const clients = Array.from({ length: CLIENTS }, () => new Redis(server.url))
  const drivers = clients.map((each) =>
    // Without the watch for a new master: it would reconnect, and the model does not know of that.
    redisDriverOn({ ...PARTS, connection: { ...connectionOf(each), master: undefined as never } }),
  )
  try {
    const played = new RedisPlay(control, drivers, terms)
    for (const step of history) {
      if (step.kind === 'fault') {
        await (played.fault === undefined ? fault.begin() : fault.end())
        played.fault = played.fault === undefined ? fault.error : undefined
        continue
      }
      const waited = played.waiting()
      const asked = 'numbers' in step ? played.idsOf(step.numbers) : []
      await played.step(step)
      const held = played.held()
      await played.compare()
      seen.announced += await checkAnnounced(played, { held, waited, asked })
    }
    await fault.end()
    played.fault = undefined
    await played.end()
    seen.failures += played.failures
    const left = (await control.keys('*')).filter((key) => key !== COUNTER)
    assert.deepEqual(left, [])
  } finally {
    for (const driver of drivers) await driver.close()
    for (const each of clients) each.disconnect()
  }
}

/**
 * Every grant that was announced is in the store, with its token. Every waiter that was granted the lock by another
 * client's call was announced.
 */
async function checkAnnounced(
  played: RedisPlay,
  step: { held: Map<string, unknown>; waited: readonly string[]; asked: readonly string[] },
): Promise<number> {
  const messages = (await allHeard()).filter(isGrant)
  const held = played.held()
  for (const [id, token] of messages) {
    // The same call may have ended it again.
    if (!step.asked.includes(id)) assert.equal(held.get(id), token, `${id} was announced with token ${token}`)
  }
  const announced = messages.map(([id]) => id)
  for (const id of step.waited) {
    if (step.held.has(id) && !step.asked.includes(id)) assert.ok(announced.includes(id), `${id} was not announced`)
  }
  return messages.length
}

/** Everything that was published before now. */
async function allHeard(): Promise<readonly unknown[]> {
  const ended = new Promise<void>((resolve) => {
    end = resolve
  })
  await control.publish('holdfast:wake:all', '"end"')
  await ended
  return heard.splice(0)
}

/** A message with only the id is a hint. */
const isGrant = (message: unknown): message is [string, number, ...unknown[]] =>
  Array.isArray(message) && message.length > 1

const PARTS = { prefix: 'lock:', timeoutMs: 10_000, sharded: async () => false }
