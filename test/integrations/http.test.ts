import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { serve } from '@hono/node-server'
import express from 'express'
import fastify from 'fastify'
import { Hono } from 'hono'
import { afterAll, describe, expect, it, vi } from 'vitest'
import { ClosedError, type DistributedLock, InvalidArgumentError } from '../../src/index.ts'
import { holdfastFastify } from '../../src/integrations/fastify.ts'
import { healthHandler, shutDown, toNodeHandler } from '../../src/integrations/http.ts'
import { prometheusMetrics } from '../../src/telemetry/prometheus.ts'
import { gate } from '../harness/gate.ts'
import { rejectionOf } from '../harness/rejection.ts'
import { startRedis } from '../harness/servers.ts'
import { askRedis } from '../harness/wire.ts'
import { ending, lockOn } from './locks.ts'

const PASSWORD = 'sEcReT-pass'

const metrics = prometheusMetrics()
afterAll(() => metrics.close())

interface Started {
  readonly address: string
  /** Shuts it down as a service does that got SIGTERM. */
  end(options: { drainSeconds: number; deadlineSeconds?: number }): Promise<void>
}

type Work = () => Promise<unknown>

/** Each serves /healthz, /metrics, and /work, which calls `work`. */
const frameworks: Record<string, (lock: DistributedLock, work: Work) => Promise<Started>> = {
  async express(lock, work) {
    const app = express()
    app.get('/healthz', toNodeHandler(healthHandler(lock)))
    app.get('/metrics', toNodeHandler(metrics.handler))
    app.get('/work', async (_, response) => {
      response.send(await work())
    })
    return listening(app.listen(0, '127.0.0.1'), lock)
  },
  async hono(lock, work) {
    const app = new Hono()
    app.get('/healthz', healthHandler(lock))
    app.get('/metrics', metrics.handler)
    app.get('/work', async (context) => context.text(String(await work())))
    return listening(serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }) as Server, lock)
  },
  async 'node:http'(lock, work) {
    const [health, shown] = [toNodeHandler(healthHandler(lock)), toNodeHandler(metrics.handler)]
    const server = createServer(async (request, response) => {
      if (request.url === '/healthz') health(request, response)
      else if (request.url === '/metrics') shown(request, response)
      else response.end(String(await work()))
    })
    return listening(server.listen(0, '127.0.0.1'), lock)
  },
  async fastify(lock, work) {
    const app = fastify()
    const close = { drainSeconds: 30, deadlineSeconds: 0.1 }
    await app.register(holdfastFastify, { lock, close, healthPath: '/healthz', metrics })
    app.get('/work', async () => String(await work()))
    const address = await app.listen({ port: 0, host: '127.0.0.1' })
    ending.push(() => app.close())
    return { address, end: () => app.close() }
  },
}

async function listening(server: Server, lock: DistributedLock): Promise<Started> {
  if (!server.listening) await once(server, 'listening')
  ending.push(() => server.close())
  const { port } = server.address() as AddressInfo
  return { address: `http://127.0.0.1:${port}`, end: (options) => shutDown(server, lock, options) }
}

describe.each(Object.entries(frameworks))('%s', (_, start) => {
  it('answers 200 while the store works, and 503 with a reason and no password when it has stopped', async () => {
    await using redis = await startRedis()
    await askRedis(redis, 'CONFIG', 'SET', 'requirepass', PASSWORD)
    const lock = lockOn(redis.url.replace('redis://', `redis://:${PASSWORD}@`))
    // Opening a connection on a busy machine may take longer than a health check waits.
    await lock.ping()
    const { address } = await start(lock, async () => '')
    const up = await fetch(`${address}/healthz`)
    expect([up.status, await up.text()]).toEqual([200, '{"status":"up"}'])
    expect(up.headers.get('content-type')).toMatch(/^application\/json/)
    expect(up.headers.get('cache-control')).toBe('no-store')

    await redis.kill()
    const down = await fetch(`${address}/healthz`)
    const text = await down.text()
    expect(down.status).toBe(503)
    expect(JSON.parse(text)).toMatchObject({ status: 'down', code: 'STORE_UNAVAILABLE', reason: expect.any(String) })
    expect(text.toLowerCase()).not.toContain(PASSWORD.toLowerCase())
  })

  it('returns metrics with their content type', async () => {
    const { address } = await start(lockOn(), async () => '')
    const response = await fetch(`${address}/metrics`)
    expect(response.status).toBe(200)
    expect(await response.text()).toMatch(/^# TYPE holdfast_\w+ counter$/m)
    expect(response.headers.get('content-type')).toBe(metrics.contentType)
  })

  it('answers HEAD, which some load balancers send, as it answers GET', async () => {
    const { address } = await start(lockOn(), async () => '')
    for (const path of ['/healthz', '/metrics']) {
      const get = await fetch(`${address}${path}`)
      const head = await fetch(`${address}${path}`, { method: 'HEAD' })
      expect([head.status, head.headers.get('content-type')]).toEqual([200, get.headers.get('content-type')])
    }
  })

  it('that shuts down lets a request end that has yet to take its lock, and leaves the lock free', async () => {
    const [lock, rival] = [lockOn(), lockOn()]
    const name = `http:${randomUUID()}`
    const [arrived, goOn] = [gate(), gate()]
    const { address, end } = await start(lock, async () => {
      arrived.open()
      await goOn.opened
      return lock.withLock(name, () => 'worked')
    })
    const response = fetch(`${address}/work`)
    await arrived.opened
    const ended = end({ drainSeconds: 30 })
    expect(lock.closed).toBe(false)
    goOn.open()
    expect(await (await response).text()).toBe('worked')
    await ended
    expect(await rejectionOf(() => lock.acquire(name))).toBeInstanceOf(ClosedError)
    expect(await rival.withLock(name, () => 'free')).toBe('free')
    expect(await rejectionOf(() => fetch(`${address}/metrics`))).toBeInstanceOf(TypeError)
  })
})

describe('a health check', () => {
  it('that is asked many times at once pings the store once, and again later', async () => {
    const ping = vi.fn(async () => undefined)
    const health = healthHandler({ closed: false, ping })
    const answers = await Promise.all(Array.from({ length: 50 }, health))
    expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200))
    expect(ping).toHaveBeenCalledTimes(1)
    await health()
    expect(ping).toHaveBeenCalledTimes(2)
  })

  it('does not wait for a store that does not answer, and does not show the message of a foreign error', async () => {
    const silent = healthHandler({ closed: false, ping: () => new Promise(() => undefined) }, { deadlineSeconds: 0.05 })
    expect(await (await silent()).json()).toMatchObject({ reason: 'the store did not answer within 0.05 s' })
    const failing = healthHandler({ closed: false, ping: () => Promise.reject(new Error(PASSWORD)) })
    expect(await (await failing()).text()).not.toContain(PASSWORD)
  })

  it('is up again after a ping that threw, at once or later', async () => {
    const fault = new Error('down')
    const ping = vi.fn(async () => undefined)
    const health = healthHandler({ closed: false, ping })
    ping.mockRejectedValueOnce(fault).mockImplementationOnce(() => {
      throw fault
    })
    const answers = [await health(), await health(), await health()]
    expect(answers.map(({ status }) => status)).toEqual([503, 503, 200])
  })

  it('is down while the instance drains', async () => {
    const lock = lockOn()
    const lease = await lock.hold(`http:${randomUUID()}`)
    const closed = lock.close({ drainSeconds: 30 })
    const response = await healthHandler(lock)()
    expect([response.status, await response.json()]).toEqual([503, expect.objectContaining({ code: 'CLOSED' })])
    await lease.release()
    await closed
  })

  it('refuses wrong arguments', () => {
    expect(() => healthHandler({} as DistributedLock)).toThrow(InvalidArgumentError)
    expect(() => healthHandler(lockOn(), { deadlineSeconds: 0 })).toThrow(InvalidArgumentError)
    expect(() => healthHandler(lockOn(), { timeout: 1 } as object)).toThrow('did you mean deadlineSeconds?')
  })
})
