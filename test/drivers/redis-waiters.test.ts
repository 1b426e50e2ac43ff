import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { redisDriver } from '../../src/drivers/redis.ts'
import { DistributedLock } from '../../src/index.ts'
import { until } from '../harness/processes.ts'
import { type Server, startRedis } from '../harness/servers.ts'

let server: Server
const clients: Redis[] = []

beforeAll(async () => {
  server = await startRedis()
})

afterAll(async () => {
  for (const client of clients) client.disconnect()
  await server[Symbol.asyncDispose]()
})

describe.concurrent('redis: waiters', () => {
  it('the first waiter is told when the lease in its way is cut short', async () => {
    const [a, b] = [lock(), lock()]
    const held = await a.hold('cut short', { timeoutSeconds: 60, minHoldSeconds: 1 })
    const waiting = b.hold('cut short', { blockingTimeoutSeconds: 15 })
    await untilHeard('cut short')
    await held.release()
    assert.ok((await waiting).held)
    await Promise.all([a.close(), b.close()])
  })

  it('a writer is told when the reader in its way is cut short', async () => {
    const [readers, writer] = [driver(), lock()]
    const reader = {
      lockName: 'read',
      claimId: 'reader',
      holderId: 'h',
      mode: 'shared',
      permits: 1,
      waitMs: 0,
    } as const
    const [answer] = await readers.acquire([{ ...reader, ttlMs: 60_000 }])
    assert.ok(answer && 'granted' in answer && answer.granted)
    const waiting = writer.hold('read', { blockingTimeoutSeconds: 15 })
    await untilHeard('read')
    assert.deepEqual(await readers.renew([{ ...reader, ttlMs: 500, fencingToken: answer.fencingToken }]), ['renewed'])
    assert.ok((await waiting).held)
    await writer.close()
  })

  it('a renewal that makes a lease last longer tells nobody', async () => {
    const [a, b] = [lock(), lock()]
    const held = await a.hold('longer', { timeoutSeconds: 30 })
    const waiting = b.hold('longer', { blockingTimeoutSeconds: 15 })
    await untilHeard('longer')
    const channel = JSON.parse(await placeOf('longer'))[7] as string
    const heard: string[] = []
    const listening = client().on('message', (_, text) => heard.push(text))
    await listening.subscribe(channel)
    await held.extend(60)
    await held.release()
    await (await waiting).release()
    await until(() => heard.length > 0, { timeoutMs: 5_000, failure: () => 'the grant was not heard' })
    assert.equal(heard.length, 1, `heard ${heard}`)
    await Promise.all([a.close(), b.close()])
  })
})

const driver = () => redisDriver({ client: client() })
/** The slow poll comes after half a minute, so whoever is served sooner was woken. */
const lock = () => new DistributedLock({ driver: driver(), waiterTtlSeconds: 60 })

async function placeOf(lockName: string): Promise<string> {
  const texts = await client().hvals(`holdfast:{lock:${lockName}}:d`)
  return texts.find((text) => text.startsWith('[') && text.includes('holdfast:wake:')) ?? '[]'
}

/** The waiter stands in line, and has said that it listens. */
const untilHeard = (lockName: string): Promise<void> =>
  until(async () => JSON.parse(await placeOf(lockName))[6] === 1, {
    timeoutMs: 10_000,
    failure: () => `nobody waits for "${lockName}"`,
  })

function client(): Redis {
  const opened = new Redis(server.port, { commandTimeout: 10_000 })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}
