import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import fastify from 'fastify'
import { describe, expect, it } from 'vitest'
import { type DistributedLock, InvalidArgumentError, LeaseLostError } from '../../src/index.ts'
import { type HoldfastFastifyOptions, holdfastFastify } from '../../src/integrations/fastify.ts'
import { type ServerLike, shutDown } from '../../src/integrations/http.ts'
import { gate } from '../harness/gate.ts'
import { rejectionOf } from '../harness/rejection.ts'
import { ending, lockOn } from './locks.ts'

async function listening(server: Server): Promise<string> {
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  ending.push(() => server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

describe('shutDown', () => {
  it('aborts the signal of a request that outlasts drainSeconds, lets it respond, and ends', async () => {
    const lock = lockOn()
    const started = gate()
    const server = createServer(async (_, response) => {
      const work = lock.withLock(`http:${randomUUID()}`, async ({ signal }) => {
        started.open()
        await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
      })
      expect(await rejectionOf(() => work)).toBeInstanceOf(LeaseLostError)
      response.writeHead(503).end('stopped')
    })
    const address = await listening(server)
    const response = fetch(address).then(({ status }) => status)
    await started.opened
    await shutDown(server, lock, { drainSeconds: 0.05 })
    expect(await response).toBe(503)
    expect(server.listening).toBe(false)
  })

  it('closes a connection that became idle, and does not wait for its keep-alive timeout', async () => {
    const [arrived, goOn] = [gate(), gate()]
    const server = createServer(async (_, response) => {
      arrived.open()
      await goOn.opened
      response.end('served')
    })
    // Far longer than this test may take.
    server.keepAliveTimeout = 600_000
    const address = await listening(server)
    const response = fetch(address)
    await arrived.opened
    const ended = shutDown(server, lockOn(), { drainSeconds: 500 })
    goOn.open()
    expect(await (await response).text()).toBe('served')
    await ended
  })

  it('does not wait for a connection that has become a WebSocket', async () => {
    const server = createServer().on('upgrade', (_, socket) => {
      socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n')
    })
    const { port } = new URL(await listening(server))
    const headers = 'Host: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n'
    const client = connect(Number(port), '127.0.0.1')
    ending.push(() => client.destroy())
    client.write(`GET / HTTP/1.1\r\n${headers}`)
    await once(client, 'data')
    const lock = lockOn()
    await shutDown(server, lock, { drainSeconds: 0.05 })
    expect(lock.closed).toBe(true)
  })

  it('of a server that does not listen, and of several instances, closes the instances', async () => {
    const locks = [lockOn(), lockOn()]
    await shutDown(createServer(), locks)
    expect(locks.map(({ closed }) => closed)).toEqual([true, true])
  })

  it('rejects with the error of an instance that could not be closed, after it has closed the others', async () => {
    const lock = lockOn()
    const fault = new Error('cannot close')
    const broken = { close: () => Promise.reject(fault) }
    expect(await rejectionOf(() => shutDown(createServer(), [broken, lock]))).toBe(fault)
    expect(lock.closed).toBe(true)
  })

  it('refuses wrong arguments before anything is stopped', async () => {
    const lock = lockOn()
    const calls: Parameters<typeof shutDown>[] = [
      [{} as ServerLike, lock],
      [createServer(), {} as DistributedLock],
      [createServer(), undefined as unknown as DistributedLock],
      [createServer(), lock, { drain: 1 } as object],
      [createServer(), lock, { drainSeconds: -1 }],
    ]
    for (const call of calls) {
      expect(await rejectionOf(() => shutDown(...call))).toBeInstanceOf(InvalidArgumentError)
    }
    expect(lock.closed).toBe(false)
  })
})

describe('the plugin for Fastify', () => {
  it('decorates the instance on which it is registered, and opens no route unless it is asked to', async () => {
    const app = fastify()
    const lock = lockOn()
    await app.register(holdfastFastify, { lock })
    expect(app.getDecorator('holdfast')).toBe(lock)
    expect((await app.inject('/metrics')).statusCode).toBe(404)
    await app.close()
    expect(lock.closed).toBe(true)
  })

  it('aborts the signal of a request that outlasts drainSeconds, so that the server can close', async () => {
    const app = fastify()
    const lock = lockOn()
    await app.register(holdfastFastify, { lock, close: { drainSeconds: 0.05 } })
    const started = gate()
    app.get('/', async () => {
      const work = lock.withLock(`http:${randomUUID()}`, async ({ signal }) => {
        started.open()
        await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
      })
      return String((await rejectionOf(() => work)) instanceof LeaseLostError)
    })
    const response = fetch(await app.listen({ port: 0, host: '127.0.0.1' }))
    await started.opened
    await app.close()
    expect(await (await response).text()).toBe('true')
  })

  it('refuses wrong options when it is registered', async () => {
    const lock = lockOn()
    for (const options of [
      {},
      { lock: {} },
      { lock, prefix: '/ops' },
      { lock, metricsPath: '/m' },
      { lock, metrics: {} },
    ]) {
      const register = async () => fastify().register(holdfastFastify, options as HoldfastFastifyOptions)
      expect(await rejectionOf(register)).toBeInstanceOf(InvalidArgumentError)
    }
    const close = { drainSeconds: -1 }
    expect(await rejectionOf(async () => fastify().register(holdfastFastify, { lock, close }))).toBeInstanceOf(
      InvalidArgumentError,
    )
  })
})
