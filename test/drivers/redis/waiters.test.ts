import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Redis } from 'ioredis'
import { createClient } from 'redis'
import { afterAll, describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { type RedisClient, redisDriver } from '../../../src/drivers/redis.ts'
import { DistributedLock } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import { startProxy } from '../../harness/proxy.ts'
import { claim, client, driverOn, HOLDER, lockOn, name, patience, shared } from '../../harness/redis-server.ts'
import { startRedis } from '../../harness/servers.ts'
import { startWorker } from '../../harness/worker.ts'

const nodeClients: { destroy(): void }[] = []
afterAll(() => {
  for (const opened of nodeClients) opened.destroy()
})

describe.concurrent('redis: waiters', () => {
  it('failure 15: a waiter that was paused does not use a lease that has ended', async () => {
    const lockName = name()
    const [a, b] = [lockOn(shared.port), lockOn(shared.port, { waiterTtlSeconds: 1 })]
    const held = await a.hold(lockName, { timeoutSeconds: 60 })
    await using worker = await startWorker({ source: HOLDER }, { callTimeoutMs: 15_000 })
    const paused = worker.call('hold', shared.url, lockName, 60, 1)
    await untilWaiting(lockName, 1)
    const next = b.hold(lockName, { timeoutSeconds: 60, blockingTimeoutSeconds: 15 })
    await untilWaiting(lockName, 2)
    await worker.pause()
    await held.release()
    const lease = await next
    worker.resume()
    await sleep(200) // in which the resumed worker could use the lease that it was handed
    assert.ok(lease.held)
    assert.equal((await driverOn(shared.port).inspect({ lockName })).leases[0]?.fencingToken, lease.fencingToken)
    await lease.release()
    assert.ok(Number(await paused) > lease.fencingToken)
    await Promise.all([a.close(), b.close()])
  })

  it('failure 29: a waiter whose subscription was killed subscribes again and finds what it missed', async () => {
    await using server = await startRedis()
    const [a, b] = [lockOn(server.port), lockOn(server.port, { waiterTtlSeconds: 60 })]
    const lockName = name()
    const held = await a.hold(lockName, { timeoutSeconds: 60 })
    const waiting = b.hold(lockName, { timeoutSeconds: 60, blockingTimeoutSeconds: 30 })
    const control = client(server.port)
    await until(async () => (await subscribers(control)) === 1, patience('a subscription'))
    await control.call('CLIENT', 'KILL', 'TYPE', 'pubsub')
    await held.release()
    const startedMs = performance.now()
    const lease = await waiting
    assert.ok(performance.now() - startedMs < 8_000, 'it was found by the slow poll, not by listening again')
    await lease.release()
    await Promise.all([a.close(), b.close()])
  })

  for (const [through, open] of [
    ['ioredis', (port: number) => client(port)],
    ['node-redis', openNodeRedis],
  ] as const) {
    it(`failure 29: a connection lost between its two SUBSCRIBEs is not listening, through ${through}`, async () => {
      await using proxy = await startProxy(shared.port)
      const driver = redisDriver({ client: await open(proxy.port) })
      const listener = { wake() {}, granted() {}, lost() {}, disconnected: assert.fail }
      const cut = proxy.cutAfterForwarding('holdfast:forced')
      await assert.rejects(async () => driver.listen?.(listener), { code: 'STORE_UNAVAILABLE' })
      await cut
      const grants: string[] = []
      await driver.listen?.({ ...listener, granted: (claimId) => grants.push(claimId) })
      const held = claim()
      const waits = claim({ lockName: held.lockName, waiterTtlMs: 60_000 })
      await driver.acquire([held, waits], newCall())
      assert.deepEqual(await driver.release([held]), [true])
      await until(() => grants.includes(waits.claimId), patience('the grant'))
      await driver.close()
    })
  }

  it('rule 10: a waiter keeps its place although the server still counts an ended subscription', async () => {
    const [holder, waiting] = [driverOn(shared.port), driverOn(shared.port)]
    const [earlier, later] = [name(), name()]
    const stop = await waiting.listen?.({ wake() {}, granted() {}, lost() {}, disconnected: assert.fail })
    for (const lockName of [earlier, later]) await holder.acquire([claim({ lockName })], newCall())
    await waiting.acquire([claim({ lockName: earlier, waiterTtlMs: 60_000 })], newCall())
    // In place of the driver's own connection, whose end the server may notice late.
    const lingering = client(shared.port)
    await lingering.subscribe((await placeOf(earlier))[7] as string)
    await stop?.()
    await waiting.acquire([claim({ lockName: later, waiterTtlMs: 60_000 })], newCall())
    assert.equal((await placeOf(later))[6], 0, 'it is not said to listen')
    lingering.disconnect()
  })

  it('failure 29: a waiter whose subscription broke during its start is woken for its turn', async () => {
    await using proxy = await startProxy(shared.port)
    const [a, b] = [lockOn(shared.port), lockOn(proxy.port, { waiterTtlSeconds: 60 })]
    const lockName = name()
    const held = await a.hold(lockName, { timeoutSeconds: 60 })
    const cut = proxy.cutAfterForwarding('holdfast:forced')
    const waiting = b.hold(lockName, { timeoutSeconds: 60, blockingTimeoutSeconds: 15 })
    await cut
    // The slow poll comes after 20 s.
    await untilListening(lockName)
    await held.release()
    assert.ok((await waiting).held)
    await Promise.all([a.close(), b.close()])
  })

  it('failure 30: a release before the subscription is found by asking again', async () => {
    await using proxy = await startProxy(shared.port)
    const [a, b] = [lockOn(shared.port), lockOn(proxy.port, { waiterTtlSeconds: 60 })]
    const lockName = name()
    const held = await a.hold(lockName, { timeoutSeconds: 60 })
    await (await b.hold(name())).release()
    proxy.delay(100, 'toServer')
    const waiting = b.hold(lockName, { timeoutSeconds: 60, blockingTimeoutSeconds: 15 })
    await untilWaiting(lockName, 1)
    await held.release()
    await (await waiting).release()
    proxy.heal()
    await Promise.all([a.close(), b.close()])
  })

  it('rule 10: a grant that arrives before the refusal it follows is found at once, not by the slow poll', async () => {
    await using proxy = await startProxy(shared.port)
    // The proxy delays answers, but not messages: the subscription does not go through it.
    const slow = client(proxy.port)
    Object.assign(slow, { duplicate: (options: object) => client(shared.port).duplicate(options) })
    const b = new DistributedLock({ driver: redisDriver({ client: slow }), waiterTtlSeconds: 60 })
    const a = lockOn(shared.port)
    const [first, lockName] = [name(), name()]
    // After this wait, b is subscribed.
    const before = await a.hold(first, { timeoutSeconds: 60 })
    const waitingBefore = b.hold(first, { timeoutSeconds: 60, blockingTimeoutSeconds: 15 })
    await untilListening(first)
    await before.release()
    await (await waitingBefore).release()
    const held = await a.hold(lockName, { timeoutSeconds: 60 })
    proxy.hold('toClient')
    const waiting = b.hold(lockName, { timeoutSeconds: 60, blockingTimeoutSeconds: 15 })
    await untilWaiting(lockName, 1)
    await held.release()
    // For the message of the grant to arrive: it goes another way than the answer.
    await sleep(100)
    proxy.release('toClient')
    const lease = await waiting
    await lease.release()
    await Promise.all([a.close(), b.close()])
  })

  it('failure 31: a release passes over a first waiter whose process was killed', async () => {
    const lockName = name()
    const [a, b] = [lockOn(shared.port), lockOn(shared.port, { waiterTtlSeconds: 60 })]
    const held = await a.hold(lockName, { timeoutSeconds: 60 })
    const worker = await startWorker({ source: HOLDER }, { callTimeoutMs: 30_000 })
    worker.call('hold', shared.url, lockName, 60, 60).catch(() => {})
    await untilListening(lockName)
    const next = b.hold(lockName, { timeoutSeconds: 60, blockingTimeoutSeconds: 30 })
    await untilWaiting(lockName, 2)
    await worker.kill()
    const releasedMs = performance.now()
    await held.release()
    const lease = await next
    assert.ok(performance.now() - releasedMs < 15_000, 'the dead waiter was waited for')
    await lease.release()
    await Promise.all([a.close(), b.close()])
  })

  it('the first waiter is woken when the lease before it is shortened', async () => {
    const [a, b] = [patientLock(), patientLock()]
    const held = await a.hold('cut short', { timeoutSeconds: 60, minHoldSeconds: 1 })
    const waiting = b.hold('cut short', { blockingTimeoutSeconds: 15 })
    await untilListening('cut short')
    await held.release()
    assert.ok((await waiting).held)
    await Promise.all([a.close(), b.close()])
  })

  it('a writer is woken when the lease of the reader before it is shortened', async () => {
    const [readers, writer] = [driverOn(shared.port), patientLock()]
    const reader = {
      lockName: 'read',
      claimId: 'reader',
      holderId: 'h',
      mode: 'shared',
      permits: 1,
      waiterTtlMs: 0,
    } as const
    const [answer] = await readers.acquire([{ ...reader, ttlMs: 60_000 }], newCall())
    assert.ok(answer && 'granted' in answer && answer.granted)
    const waiting = writer.hold('read', { blockingTimeoutSeconds: 15 })
    await untilListening('read')
    assert.deepEqual(await readers.renew([{ ...reader, ttlMs: 500, fencingToken: answer.fencingToken }]), ['renewed'])
    assert.ok((await waiting).held)
    await writer.close()
  })

  it('a renewal that prolongs a lease publishes nothing', async () => {
    const [a, b] = [patientLock(), patientLock()]
    const held = await a.hold('longer', { timeoutSeconds: 30 })
    const waiting = b.hold('longer', { blockingTimeoutSeconds: 15 })
    await untilListening('longer')
    const channel = (await placeOf('longer'))[7] as string
    const heard: string[] = []
    const listening = client(shared.port).on('message', (_, text) => heard.push(text))
    await listening.subscribe(channel)
    await held.extend(60)
    await held.release()
    await (await waiting).release()
    await until(() => heard.length > 0, { timeoutMs: 5_000, failure: () => 'the grant was not heard' })
    assert.equal(heard.length, 1, `heard ${heard}`)
    await Promise.all([a.close(), b.close()])
  })
})

async function openNodeRedis(port: number): Promise<RedisClient> {
  const opened = createClient({ url: `redis://127.0.0.1:${port}` })
  opened.on('error', () => {})
  await opened.connect()
  nodeClients.push(opened)
  return opened as unknown as RedisClient
}

/** The slow poll comes after 20 s, so a waiter that is served sooner was woken. */
const patientLock = (): DistributedLock => lockOn(shared.port, { waiterTtlSeconds: 60 })

let watching: Driver | undefined

const untilWaiting = (lockName: string, count: number): Promise<void> => {
  watching ??= driverOn(shared.port)
  const driver = watching
  const isSo = async (): Promise<boolean> => (await driver.inspect({ lockName })).waiters.length >= count
  return until(isSo, patience(`${count} waiters`))
}

let control: Redis | undefined

/** The stored data of the first waiter. */
async function placeOf(lockName: string): Promise<unknown[]> {
  control ??= client(shared.port)
  const texts = await control.hvals(`holdfast:{lock:${lockName}}:d`)
  return JSON.parse(texts.find((text) => text.startsWith('[') && text.includes('holdfast:wake:')) ?? '[]') as unknown[]
}

/** The server has seen the first waiter as a subscriber. If it no longer is one, it counts as gone. */
const untilListening = (lockName: string): Promise<void> =>
  until(async () => typeof (await placeOf(lockName))[6] === 'string', patience('the waiter to listen'))

const subscribers = async (control: Redis): Promise<number> =>
  ((await control.call('PUBSUB', 'CHANNELS', 'holdfast:wake:*')) as string[]).length
