import { connect } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { until } from './processes.ts'
import { type FaultProxy, startProxy } from './proxy.ts'
import { type Server, startRedis } from './servers.ts'
import { askRedis } from './wire.ts'

describe('proxy', () => {
  let redis: Server
  let proxy: FaultProxy
  const ask = (...command: string[]) => askRedis({ port: proxy.port }, ...command)
  /** Long enough for an answer that must not come. */
  const askBriefly = (...command: string[]) => askRedis({ port: proxy.port, timeoutMs: 200 }, ...command)

  beforeAll(async () => {
    redis = await startRedis()
  })
  afterAll(() => redis[Symbol.asyncDispose]())

  async function withProxy(work: () => Promise<void>): Promise<void> {
    proxy = await startProxy(redis.port)
    await askRedis(redis, 'FLUSHALL')
    await work().finally(() => proxy.close())
  }

  test('forwards bytes unchanged, and counts its connections', () =>
    withProxy(async () => {
      const value = 'é\r\n$5'.repeat(100_000)
      expect(await ask('SET', 'name', value)).toBe('OK')
      expect(await ask('GET', 'name')).toBe(value)
      const idle = connect(proxy.port, '127.0.0.1')
      await until(() => proxy.connections === 1, { timeoutMs: 10_000, failure: () => 'the connection is not counted' })
      idle.destroy()
      await until(() => proxy.connections === 0, { timeoutMs: 10_000, failure: () => 'the connection stays counted' })
    }))

  test.each(['toServer', 'toClient'] as const)('delays bytes %s, and no longer when the delay is 0', (direction) =>
    withProxy(async () => {
      proxy.delay(1_500, direction)
      expect(await durationMs(() => ask('PING'))).toBeGreaterThanOrEqual(1_499)
      proxy.delay(0, direction)
      expect(await durationMs(() => ask('PING'))).toBeLessThan(1_499)
    }),
  )

  test('delays both directions unless one is given', () =>
    withProxy(async () => {
      proxy.delay(70)
      expect(await durationMs(() => ask('PING'))).toBeGreaterThanOrEqual(139)
    }))

  test('a cut resets open connections, and a new one works', () =>
    withProxy(async () => {
      proxy.hold('toClient')
      const asked = ask('PING')
      asked.catch(() => {})
      await until(() => proxy.connections === 1, { timeoutMs: 10_000, failure: () => 'not connected' })
      proxy.cut()
      await expect(asked).rejects.toThrow('ECONNRESET')
      proxy.release('toClient')
      expect(await ask('PING')).toBe('PONG')
    }))

  test('a redirect sends new connections to another server, and keeps open ones', () =>
    withProxy(async () => {
      await using other = await startRedis()
      proxy.hold('toServer')
      const before = ask('INFO', 'server')
      await until(() => proxy.connections === 1, { timeoutMs: 10_000, failure: () => 'not connected' })
      proxy.redirect(other.port)
      proxy.release('toServer')
      expect(await before).toContain(`tcp_port:${redis.port}`)
      expect(await ask('INFO', 'server')).toContain(`tcp_port:${other.port}`)
    }))

  test('a black hole towards the client drops the reply, but not the request', () =>
    withProxy(async () => {
      proxy.blackHole('toClient')
      await expect(askBriefly('SET', 'name', 'value')).rejects.toThrow('no answer')
      expect(await askRedis(redis, 'GET', 'name')).toBe('value')
    }))

  test('a black hole towards the server drops the request for good, and heals', () =>
    withProxy(async () => {
      proxy.blackHole('toServer')
      await expect(askBriefly('SET', 'name', 'value')).rejects.toThrow('no answer')
      proxy.heal()
      expect(await ask('GET', 'name')).toBeNull()
    }))

  test('a connection that lost bytes in a black hole is reset when it heals', () =>
    withProxy(async () => {
      proxy.blackHole()
      const asked = ask('PING')
      setTimeout(() => proxy.heal(), 50)
      await expect(asked).rejects.toThrow('ECONNRESET')
    }))

  test('a request that is held back arrives on release, although its sender has gone', () =>
    withProxy(async () => {
      proxy.hold('toServer')
      await expect(askBriefly('SET', 'name', 'late')).rejects.toThrow('no answer')
      expect(await askRedis(redis, 'GET', 'name')).toBeNull()
      proxy.release('toServer')
      const arrived = async () => (await askRedis(redis, 'GET', 'name')) === 'late'
      await until(arrived, { timeoutMs: 10_000, failure: () => 'the late write never arrived' })
    }))

  test('a reply that is held back arrives on release', () =>
    withProxy(async () => {
      proxy.hold('toClient')
      const asked = ask('INCR', 'count')
      const done = async () => (await askRedis(redis, 'GET', 'count')) === '1'
      await until(done, { timeoutMs: 10_000, failure: () => 'the request never arrived' })
      proxy.release('toClient')
      expect(await asked).toBe(1)
    }))

  test('cutAfterForwarding loses the reply of the chosen request, and keeps its effect', () =>
    withProxy(async () => {
      const cut = proxy.cutAfterForwarding('INCR')
      expect(await ask('PING')).toBe('PONG')
      await expect(ask('INCR', 'count')).rejects.toThrow('ECONNRESET')
      await cut
      expect(await ask('GET', 'count')).toBe('1')
      expect(await ask('INCR', 'count')).toBe(2)
    }))
})

async function durationMs(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now()
  await work()
  return performance.now() - start
}
