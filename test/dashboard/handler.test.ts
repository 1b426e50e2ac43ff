import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { gzipSync } from 'node:zlib'
import { describe, expect, test } from 'vitest'
import type { Driver } from '../../src/core/driver.ts'
import { createAccessToken, withAccessToken } from '../../src/dashboard/access-token.ts'
import { createDashboard, type Dashboard, type DashboardOptions } from '../../src/dashboard/index.ts'
import type { LockDetail } from '../../src/dashboard/wire.ts'
import { memoryDriver } from '../../src/drivers/memory.ts'
import { DistributedLock } from '../../src/index.ts'
import { until } from '../harness/processes.ts'

const LOCAL = 'http://127.0.0.1:7411'

const open = (options: Partial<DashboardOptions> = {}): Dashboard =>
  createDashboard({ stores: [{ driver: memoryDriver() }], authorize: 'none', ...options })

const get = (path: string, headers: Record<string, string> = {}): Request =>
  new Request(`${LOCAL}${path}`, { headers: { host: '127.0.0.1:7411', ...headers } })

const post = (path: string, body: unknown, headers: Record<string, string> = {}): Request =>
  new Request(`${LOCAL}${path}`, {
    method: 'POST',
    headers: { host: '127.0.0.1:7411', origin: LOCAL, 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  })

describe('who may see the dashboard', () => {
  test('a dashboard without authorize is not created', () => {
    const stores = [{ driver: memoryDriver() }]
    expect(() => createDashboard({ stores } as unknown as DashboardOptions)).toThrow(/authorize must be a function/)
  })

  test.each(['/', '/app.js', '/api/stream', '/api/lock?store=0&name=a', '/api/rates?store=0'])(
    'authorize decides about every path: %s',
    async (path) => {
      const asked: string[] = []
      const dashboard = open({
        authorize: (request) => {
          asked.push(new URL(request.url).pathname)
          return false
        },
      })
      expect((await dashboard(get(path))).status).toBe(401)
      expect(asked).toEqual([path.replace(/\?.*/, '')])
      await dashboard.close()
    },
  )

  test('a request for a foreign host is refused before authorize is asked (DNS rebinding)', async () => {
    let asked = 0
    const dashboard = open({ hosts: ['127.0.0.1', 'ops.example.com'], authorize: () => ++asked > 0 })
    expect((await dashboard(get('/', { host: 'evil.example:7411' }))).status).toBe(421)
    expect(asked).toBe(0)
    expect((await dashboard(get('/', { host: 'OPS.example.com' }))).status).toBe(200)
    await dashboard.close()
  })

  test('a request that another site makes the browser send is refused', async () => {
    const dashboard = open({ allowActions: true })
    const elsewhere = { origin: 'https://evil.example' }
    const status = async (request: Request) => (await dashboard(request)).status
    expect(await status(get('/api/lock?store=0&name=a', elsewhere))).toBe(403)
    expect(await status(get('/api/lock?store=0&name=a', { 'sec-fetch-site': 'cross-site' }))).toBe(403)
    expect(await status(post('/api/force-release', {}, elsewhere))).toBe(403)
    expect(await status(post('/api/force-release', {}, { origin: 'null' }))).toBe(403)
    const navigation = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate' }
    expect(await status(get('/', navigation))).toBe(200)
    expect(await status(post('/api/force-release', {}))).toBe(400)
    await dashboard.close()
  })

  test('a request that changes something needs an origin', async () => {
    const dashboard = open({ allowActions: true })
    const headers = { host: '127.0.0.1:7411', 'content-type': 'application/json' }
    const request = new Request(`${LOCAL}/api/force-release`, { method: 'POST', headers, body: '{}' })
    expect((await dashboard(request)).status).toBe(403)
    await dashboard.close()
  })

  test('the token is exchanged for a cookie that scripts and other sites cannot use', async () => {
    const access = createAccessToken('holdfast-7411')
    const dashboard = withAccessToken(access, { user: 'ada' }, (authorize) => open({ authorize, hosts: ['127.0.0.1'] }))
    expect((await dashboard(get('/'))).status).toBe(401)
    expect((await dashboard(get('/?token=wrong'))).status).toBe(401)
    expect((await dashboard(get('/api/stream?token=wrong'))).status).toBe(401)
    expect((await dashboard(get(`/?token=${access.token}`, { host: 'evil.example' }))).status).toBe(421)
    const response = await dashboard(get(`/?token=${access.token}`))
    const cookie = response.headers.get('set-cookie') ?? ''
    expect(cookie).toMatch(/^holdfast-7411=[\w-]+; HttpOnly; SameSite=Strict; Path=\/$/)
    expect(cookie).not.toContain(access.token)
    const [pair = ''] = cookie.split(';')
    expect((await dashboard(get('/', { cookie: `a=b; ${pair}` }))).status).toBe(200)
    expect((await dashboard(get('/', { cookie: 'holdfast-7411=other' }))).status).toBe(401)
    await dashboard.close()
  })
})

describe('what is sent', () => {
  test('every answer forbids foreign and inline scripts, frames and caches', async () => {
    const dashboard = open()
    for (const path of ['/', '/app.css', '/api/lock?store=0&name=a', '/api/nothing']) {
      const { headers } = await dashboard(get(path))
      expect(headers.get('content-security-policy')).toMatch(
        /^default-src 'none'; script-src 'self'; style-src 'self';/,
      )
      expect(headers.get('content-security-policy')).not.toContain('unsafe')
      expect(headers.get('cache-control')).toBe('no-store')
    }
    await dashboard.close()
  })

  test('the page loads its parts relative to itself, under every path', async () => {
    const dashboard = open()
    for (const [path, expected] of [
      ['/', './app.js'],
      ['/ops/locks/', './app.js'],
      ['/ops/locks', './locks/app.js'],
      ['//evil.example/', './app.js'],
      ['/%22%3E%3Cscript%3E', './%22%3E%3Cscript%3E/app.js'],
    ] as const) {
      const html = await (await dashboard(get(path))).text()
      expect(/src="([^"]+)"/.exec(html)?.[1]).toBe(expected)
    }
    await dashboard.close()
  })

  test('no claim id leaves the server: it would allow others to end the lease', async () => {
    const driver = memoryDriver()
    const dashboard = open({ stores: [{ driver }] })
    const lock = new DistributedLock({ driver, holderId: 'one' })
    await lock.acquire('a', { metadata: { b: 1 } })
    const waiting = lock.acquire('a', { blockingTimeoutSeconds: 30 })
    await until(async () => (await driver.inspect({})).waiters.length === 1, PATIENCE)
    const { leases, waiters } = await driver.inspect({})
    const stream = await firstSteps(dashboard, 1)
    const detail = await (await dashboard(get('/api/lock?store=0&name=a'))).text()
    const waits = await (await dashboard(get('/api/waits?store=0'))).text()
    for (const text of [stream.join(), detail, waits]) {
      expect(text).toContain('one')
      for (const { claimId } of [...leases, ...waiters]) expect(text).not.toContain(claimId)
    }
    await lock.releaseAll()
    await waiting
    await lock.close()
    await dashboard.close()
  })

  test('a password in a URL is never sent, not even if the store cannot be reached', async () => {
    const dashboard = open({ stores: [{ url: 'redis://ada:s3cret-pw@127.0.0.1:1/0' }] })
    const [step = ''] = await firstSteps(dashboard, 1)
    expect(step).toContain('127.0.0.1:1')
    expect(step).toMatch(/"error":/)
    expect(step).not.toContain('s3cret')
    await dashboard.close()
  })

  test('everything that the browser loads is at most 60 kB, compressed', async () => {
    const file = pathToFileURL(join(import.meta.dirname, '../../dist/dashboard/assets.js')).href
    const { assets } = (await import(file)) as { assets: Record<string, string> }
    expect(assets['script']).toContain('Preact')
    const bytes = Object.values(assets).reduce((sum, text) => sum + gzipSync(text, { level: 9 }).length, 0)
    expect(bytes).toBeLessThan(60_000)
  })
})

describe('how a store is read', () => {
  test('one reading serves all viewers, and none is made while no one watches', async () => {
    const memory = memoryDriver()
    let readings = 0
    const driver: Driver = {
      ...memory,
      inspect(query) {
        readings += 1
        return memory.inspect(query)
      },
    }
    const dashboard = open({ stores: [{ driver }] })
    const viewers = await Promise.all([1, 2, 3].map(() => dashboard(get('/api/stream'))))
    const streams = viewers.map(({ body }) => body?.getReader())
    await until(() => readings >= 3, PATIENCE)
    const seen = readings
    // Each viewer gets each step: more readings than steps of one viewer are not made.
    const texts = await Promise.all(streams.map((stream) => readUntil(stream, (text) => stepsIn(text) >= seen)))
    for (const text of texts) expect(stepsIn(text)).toBeGreaterThanOrEqual(seen)
    await Promise.all(streams.map((stream) => stream?.cancel()))
    const atEnd = readings
    await new Promise((resolve) => setTimeout(resolve, 1_200)) // Longer than two intervals of the poller.
    expect(readings).toBeLessThanOrEqual(atEnd + 1)
    await dashboard.close()
  })

  test('a store that fails keeps what was known, says why, and is read again', async () => {
    const memory = memoryDriver()
    let failure: Error | undefined
    const driver: Driver = {
      ...memory,
      inspect: (query) => (failure ? Promise.reject(failure) : memory.inspect(query)),
    }
    const lock = new DistributedLock({ driver })
    await lock.acquire('a')
    const dashboard = open({ stores: [{ driver }] })
    const reader = (await dashboard(get('/api/stream'))).body?.getReader()
    expect(await readUntil(reader, (text) => text.includes('"a"'))).not.toContain('"error"')
    failure = new Error('the disk is on fire')
    expect(await readUntil(reader, (text) => text.includes('on fire'))).not.toContain('"gone"')
    failure = undefined
    await lock.acquire('b')
    expect(await readUntil(reader, (text) => text.includes('"b"'))).toContain('"rows"')
    await reader?.cancel()
    await lock.close()
    await dashboard.close()
  })
})

describe('forced release', () => {
  test('a dashboard is read-only by default', async () => {
    const driver = memoryDriver()
    const lock = new DistributedLock({ driver })
    await lock.acquire('a')
    const [lease] = (await driver.inspect({})).leases
    const dashboard = open({ stores: [{ driver }] })
    const request = { store: 0, name: 'a', tokens: [lease?.fencingToken], reason: 'why' }
    expect((await dashboard(post('/api/force-release', request))).status).toBe(403)
    expect((await driver.inspect({})).leases).toEqual([lease])
    await lock.close()
    await dashboard.close()
  })

  test('it ends what the viewer has seen and nothing newer, and records who and why', async () => {
    const driver = memoryDriver()
    const lock = new DistributedLock({ driver, holderId: 'worker' })
    const dashboard = open({ stores: [{ driver }], allowActions: true, authorize: () => ({ user: 'ada' }) })
    await lock.acquire('a')
    const [old] = (await driver.inspect({ lockName: 'a' })).leases
    await lock.release('a')
    await lock.acquire('a')
    const [lease] = (await driver.inspect({ lockName: 'a' })).leases
    const ask = async (token: number | undefined, reason = 'it hangs') =>
      dashboard(post('/api/force-release', { store: 0, name: 'a', tokens: [token], reason }))
    expect((await ask(old?.fencingToken)).status).toBe(409)
    expect((await ask(lease?.fencingToken, '  ')).status).toBe(400)
    expect((await driver.inspect({ lockName: 'a' })).leases).toEqual([lease])
    expect(await (await ask(lease?.fencingToken)).json()).toEqual({ ended: 1 })
    expect((await driver.inspect({ lockName: 'a' })).leases).toEqual([])
    const detail = (await (await dashboard(get('/api/lock?store=0&name=a'))).json()) as LockDetail
    expect(detail.forcedReleases).toMatchObject([{ by: 'ada', reason: 'it hangs', ended: ['worker'] }])
    await lock.close()
    await dashboard.close()
  })
})

const PATIENCE = { timeoutMs: 30_000, failure: () => 'it did not happen' }

type Reader = ReadableStreamDefaultReader<Uint8Array> | undefined

async function readUntil(reader: Reader, isEnough: (text: string) => boolean): Promise<string> {
  let text = ''
  while (!isEnough(text)) {
    const { done, value } = (await reader?.read()) ?? { done: true }
    if (done) throw new Error(`the stream ended after: ${text}`)
    text += Buffer.from(value ?? []).toString()
  }
  return text
}

const stepsIn = (text: string): number => text.split('event: step').length - 1

async function firstSteps(dashboard: Dashboard, count: number): Promise<string[]> {
  const reader = (await dashboard(get('/api/stream'))).body?.getReader()
  const text = await readUntil(reader, (each) => stepsIn(each) >= count && each.endsWith('\n\n'))
  await reader?.cancel()
  return text.split('event: step').slice(1)
}
