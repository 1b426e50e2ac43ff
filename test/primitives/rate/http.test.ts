import { once } from 'node:events'
import { createServer, type IncomingMessage, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import express, { type Request as ExpressRequest } from 'express'
import fastify, { type FastifyRequest } from 'fastify'
import { afterEach, describe, expect, it, vi } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { InvalidArgumentError, RateLimiter, type RateLimiterOptions, StoreError } from '../../../src/index.ts'
import {
  type HttpRateLimitOptions,
  rateLimitExpress,
  rateLimitFastify,
  rateLimitFetch,
} from '../../../src/primitives/rate/http.ts'
import { gate } from '../../harness/gate.ts'

const ending: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ending.splice(0).reverse()) await end()
})

function limiterOf(limits: RateLimiterOptions['limits'], driver = memoryDriver()): RateLimiter {
  const limiter = new RateLimiter({ driver, limits })
  ending.push(() => limiter.close())
  return limiter
}

const TWICE = { limit: 2, periodSeconds: 60 }
const userOf = (headers: IncomingMessage['headers']): string => `user:${String(headers['x-user'])}`

async function listening(listener: RequestListener): Promise<string> {
  const server = createServer(listener).listen(0, '127.0.0.1')
  await once(server, 'listening')
  ending.push(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** Each starts a server with a limiter before a page that says "served", and returns its address. */
const servers: Record<string, (limiters: readonly RateLimiter[], options?: object) => Promise<string>> = {
  async express(limiters, options) {
    const app = express()
    for (const limiter of limiters) {
      app.use(rateLimitExpress({ limiter, key: (request: ExpressRequest) => userOf(request.headers), ...options }))
    }
    app.get('/', (_, response) => {
      response.send('served')
    })
    return listening(app)
  },
  async 'node:http'(limiters, options) {
    const steps = limiters.map((limiter) =>
      rateLimitExpress({ limiter, key: (each) => userOf(each.headers), ...options }),
    )
    return listening((request, response) => {
      const step = (at: number, error?: unknown): void => {
        if (error !== undefined) response.writeHead(500).end(String(error))
        else if (at === steps.length) response.end('served')
        else steps[at]?.(request, response, (failed) => step(at + 1, failed))
      }
      step(0)
    })
  },
  async fastify(limiters, options) {
    const app = fastify()
    for (const limiter of limiters) {
      const key = (request: FastifyRequest) => userOf(request.headers)
      app.addHook('onRequest', rateLimitFastify({ limiter, key, ...options }))
    }
    app.get('/', () => 'served')
    ending.push(() => app.close())
    return app.listen({ port: 0, host: '127.0.0.1' })
  },
  async fetch(limiters, options) {
    let handler = async (_request: Request): Promise<Response> => new Response('served')
    for (const limiter of limiters.toReversed()) {
      const key = ({ headers }: Request) => `user:${headers.get('x-user')}`
      handler = rateLimitFetch(handler, { limiter, key, ...options })
    }
    return listening(async (request, response) => {
      try {
        const headers = new Headers({ 'x-user': String(request.headers['x-user']) })
        const answer = await handler(new Request('http://localhost/', { headers }))
        response.writeHead(answer.status, Object.fromEntries(answer.headers))
        response.end(await answer.text())
      } catch (error) {
        response.writeHead(500).end(String(error))
      }
    })
  },
}

describe.each(Object.entries(servers))('%s', (_, start) => {
  const ask = (url: string, user = 'ann') => fetch(url, { headers: { 'x-user': user } })

  it('serves allowed requests with the standard fields, and refuses the rest with 429 and Retry-After', async () => {
    const url = await start([limiterOf(TWICE)])
    const first = await ask(url)
    expect(first.status).toBe(200)
    expect(await first.text()).toBe('served')
    expect(first.headers.get('ratelimit-policy')).toBe('"default";q=2;w=60')
    expect(first.headers.get('ratelimit')).toBe('"default";r=1;t=30')
    expect(first.headers.get('retry-after')).toBe(null)
    expect((await ask(url)).headers.get('ratelimit')).toMatch(/^"default";r=0;t=\d+$/)

    const refused = await ask(url)
    expect(refused.status).toBe(429)
    expect(refused.headers.get('ratelimit-policy')).toBe('"default";q=2;w=60')
    expect(refused.headers.get('ratelimit')).toMatch(/^"default";r=0;t=\d+$/)
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(1)
    expect(refused.headers.get('content-type')).toMatch(/^application\/problem\+json/)
    expect(await refused.json()).toEqual({
      type: 'https://iana.org/assignments/http-problem-types#quota-exceeded',
      title: 'Request cannot be satisfied as assigned quota has been exceeded',
      'violated-policies': ['default'],
    })
    expect((await ask(url, 'bob')).status).toBe(200)
  })

  it('several limiters in a row each append to the fields', async () => {
    const url = await start([limiterOf(TWICE), limiterOf({ limit: 10, periodSeconds: 3_600, burst: 5 })])
    const { headers } = await ask(url)
    const policies = headers.get('ratelimit-policy')?.split(', ').sort()
    expect(policies).toEqual(['"default";q=10;w=3600;holdfast-burst=5', '"default";q=2;w=60'])
    expect(headers.get('ratelimit')?.split(', ').sort()).toEqual(['"default";r=1;t=30', '"default";r=4;t=360'])
  })

  it('a request without a key is not limited, and costs are counted', async () => {
    const costs = { cost: () => 2 }
    const url = await start([limiterOf(TWICE)], costs)
    expect((await ask(url)).headers.get('ratelimit')).toBe('"default";r=0;t=30')
    expect((await ask(url)).status).toBe(429)
    const free = await start([limiterOf(TWICE)], { key: () => undefined })
    const response = await ask(free)
    expect(response.headers.get('ratelimit')).toBe(null)
    expect(await response.text()).toBe('served')
  })

  it('a store that cannot be reached is a server error, or lets requests pass with failOpen', async () => {
    const failing = { ...memoryDriver(), consume: () => Promise.reject(new Error('out of order')) }
    expect((await ask(await start([limiterOf(TWICE, failing)]))).status).toBe(500)
    const open = await ask(await start([limiterOf(TWICE, failing)], { failOpen: true }))
    expect(open.status).toBe(200)
    expect(open.headers.get('ratelimit')).toBe(null)
  })
})

describe('the header fields', () => {
  const asked = async (limits: RateLimiterOptions['limits'], options: Partial<HttpRateLimitOptions<Request>> = {}) => {
    const limited = rateLimitFetch(async () => new Response(null, { status: 204 }), {
      limiter: limiterOf(limits),
      key: () => 'key',
      ...options,
    })
    return { ask: () => limited(new Request('http://localhost/')) }
  }

  it('name every limit in a success, and the exceeded limits in a refusal', async () => {
    const { ask } = await asked([
      { limit: 1, periodSeconds: 60 },
      { limit: 1_000, periodSeconds: 3_600 },
    ])
    const first = await ask()
    expect(first.status).toBe(204)
    expect(first.headers.get('ratelimit-policy')).toBe('"per-60s";q=1;w=60, "per-3600s";q=1000;w=3600')
    expect(first.headers.get('ratelimit')).toBe('"per-60s";r=0;t=60, "per-3600s";r=999;t=4')
    const refused = await ask()
    const [, seconds] = /^"per-60s";r=0;t=(\d+)$/.exec(refused.headers.get('ratelimit') ?? '') ?? []
    expect(refused.headers.get('retry-after')).toBe(seconds)
  })

  it('have whole seconds and the same rate', async () => {
    const { ask } = await asked({ limit: 10, periodSeconds: 0.1 })
    expect((await ask()).headers.get('ratelimit-policy')).toBe('"default";q=100;w=1')
    const uneven = await asked({ limit: 3, periodSeconds: 1.5 }, { names: ['per user'] })
    expect((await uneven.ask()).headers.get('ratelimit-policy')).toBe('"per user";q=4;w=2')
  })

  it('are added to a response with immutable headers', async () => {
    const limited = rateLimitFetch(() => Response.redirect('http://localhost/elsewhere', 307), {
      limiter: limiterOf(TWICE),
      key: () => 'key',
    })
    const response = await limited(new Request('http://localhost/'))
    expect(response.status).toBe(307)
    expect(response.headers.get('location')).toBe('http://localhost/elsewhere')
    expect(response.headers.get('ratelimit')).toBe('"default";r=1;t=30')
  })

  it('are not added to a response that cannot be copied', async () => {
    const limited = rateLimitFetch(() => Response.error(), { limiter: limiterOf(TWICE), key: () => 'key' })
    expect((await limited(new Request('http://localhost/'))).type).toBe('error')
  })

  it('do not touch a response that was sent meanwhile, and no rejection is unhandled', async () => {
    const unhandled: unknown[] = []
    const hear = (error: unknown): unknown => unhandled.push(error)
    process.on('unhandledRejection', hear)
    const inner = memoryDriver()
    const slow: Driver = {
      ...inner,
      consume: async (requests) => {
        await asked.opened
        return (await inner.consume?.(requests)) ?? []
      },
    }
    const [asked, served] = [gate(), gate()]
    const limiter = limiterOf({ limit: 1, periodSeconds: 60 }, slow)
    const limited = rateLimitExpress({ limiter, key: () => 'key' })
    const reached: string[] = []
    const url = await listening((request, response) => {
      limited(request, response, () => reached.push(request.url ?? ''))
      response.writeHead(503).end('too late')
      if (request.url === '/second') served.open()
    })
    expect([(await fetch(`${url}/first`)).status, (await fetch(`${url}/second`)).status]).toEqual([503, 503])
    await served.opened
    asked.open()
    while ((await limiter.peek('key')).remaining > 0) await new Promise(setImmediate)
    await new Promise(setImmediate) // an unhandled rejection is reported by then
    process.off('unhandledRejection', hear)
    expect(unhandled).toEqual([])
    expect(reached).toEqual(['/first'])
  })

  it.each([
    ['limiter', { limiter: {} }],
    ['key', { key: 'ip' }],
    ['cost', { cost: 2 }],
    ['names', { names: [] }],
    ['names', { names: ['a "quoted" one'] }],
    ['failOpen', { failOpen: 'yes' }],
  ])('a bad %s is refused at once', (argument, bad) => {
    const options = { limiter: limiterOf(TWICE), key: () => 'key', ...bad } as HttpRateLimitOptions<Request>
    for (const make of [() => rateLimitExpress(options), () => rateLimitFastify(options)]) {
      expect(make).toThrow(InvalidArgumentError)
      expect(make).toThrow(new RegExp(`^${argument} must be`))
    }
  })
})

describe('an error that `next` throws', () => {
  it.each([
    ['a 500 if nothing was answered', false, 500],
    ['nothing more if something was', true, 200],
  ])('is a warning, and %s: `next` is called once', async (_, headersSent, statusCode) => {
    await using limiter = new RateLimiter({ driver: memoryDriver(), limits: { limit: 10, periodSeconds: 1 } })
    const middleware = rateLimitExpress({ limiter, key: () => 'key' })
    const response = { statusCode: 200, headersSent, getHeader: () => undefined, setHeader: () => {}, end: () => {} }
    const warned = new Promise((resolve) => {
      vi.spyOn(process, 'emitWarning').mockImplementation(resolve)
    })
    const errors: unknown[] = []
    middleware({ headers: {} }, response, (error) => {
      errors.push(error)
      throw new Error('a handler failed')
    })
    expect(await warned).toMatch(/^next, .*threw Error: a handler failed$/)
    vi.restoreAllMocks()
    await new Promise(setImmediate) // a second call would have come by then
    expect(errors).toEqual([undefined])
    expect(response.statusCode).toBe(statusCode)
  })
})

describe('a limiter whose fallback answers', () => {
  it('refuses with Retry-After, and without limits that are not in force', async () => {
    const driver: Driver = { ...memoryDriver(), consume: () => Promise.reject(new StoreError('down')) }
    const fallback = limiterOf({ limit: 1, periodSeconds: 60 })
    const limiter = new RateLimiter({ driver, limits: [TWICE, { limit: 9, periodSeconds: 9 }], fallback })
    ending.push(() => limiter.close())
    const handler = rateLimitFetch(async (_: Request) => new Response('served'), { limiter, key: () => 'key' })
    const ask = () => handler(new Request('http://localhost/'))
    const [served, refused] = [await ask(), await ask()]
    expect([served.status, refused.status]).toEqual([200, 429])
    for (const { headers } of [served, refused]) {
      expect([headers.get('ratelimit'), headers.get('ratelimit-policy')]).toEqual([null, null])
    }
    expect(refused.headers.get('retry-after')).toBe('60')
    expect(await refused.json()).toMatchObject({ 'violated-policies': [] })
  })
})
