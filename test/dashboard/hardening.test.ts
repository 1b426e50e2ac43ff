import { randomUUID } from 'node:crypto'
import { describe, expect, inject, test } from 'vitest'
import type { Driver } from '../../src/core/driver.ts'
import { StoreError } from '../../src/core/errors.ts'
import { CALL_TIMEOUT_MS } from '../../src/core/limits.ts'
import { systemClock } from '../../src/core/time/clock.ts'
import { createAccessToken, withAccessToken } from '../../src/dashboard/access-token.ts'
import { visible } from '../../src/dashboard/client/format.ts'
import { createDashboard, toNodeHandler } from '../../src/dashboard/index.ts'
import type { NodeRequest } from '../../src/dashboard/node-handler.ts'
import { Poller } from '../../src/dashboard/poller.ts'
import { StoreModel } from '../../src/dashboard/store-model.ts'
import { WatchedStore } from '../../src/dashboard/watched-store.ts'
import type { LockDetail } from '../../src/dashboard/wire.ts'
import { memoryDriver } from '../../src/drivers/memory.ts'
import { VirtualTime } from '../../src/testing/virtual-clock.ts'
import { until } from '../harness/processes.ts'
import { rejectionOf } from '../harness/rejection.ts'
import { askRedis } from '../harness/wire.ts'

const LOCAL = 'http://localhost:7411'

test('a name that looks like another one because of a character without width is shown with it', () => {
  // A filler, a variation selector, a tag character, a direction mark.
  const shown = ['a\u3164', 'a\ufe0f', 'a\u{e0041}', 'a\u202e', 'two\nlines'].map(visible)
  expect(shown).toEqual(['a\\u3164', 'a\\ufe0f', 'a\\udb40\\udc41', 'a\\u202e', 'two\nlines'])
})

test('the token does not stay in the address of a browser that has the cookie already', async () => {
  const access = createAccessToken('holdfast-7411')
  const dashboard = withAccessToken(access, { user: 'ada' }, (authorize) =>
    createDashboard({ stores: [{ driver: memoryDriver() }], authorize }),
  )
  const first = await dashboard(new Request(`${LOCAL}/?token=${access.token}`))
  const cookie = first.headers.get('set-cookie')?.split(';')[0] ?? ''
  const again = await dashboard(new Request(`${LOCAL}/?token=${access.token}`, { headers: { cookie } }))
  expect(await again.text()).toContain('http-equiv="refresh" content="0; url=./"')
  expect((await dashboard(new Request(`${LOCAL}/?token=old`, { headers: { cookie } }))).status).toBe(200)
  await dashboard.close()
})

describe('in a server of Node', () => {
  const answerTo = async (more: Partial<NodeRequest>): Promise<number> => {
    const dashboard = createDashboard({ stores: [{ driver: memoryDriver() }], authorize: 'none', hosts: ['localhost'] })
    const request = { headers: {}, url: '/', method: 'GET', readableEnded: true, body: {}, ...more } as NodeRequest
    const status = await new Promise<number>((resolve) => {
      const response = {
        headersSent: false,
        writeHead: (code: number) => {
          resolve(code)
          return response
        },
        write: () => true,
        end: () => undefined,
        destroy: () => undefined,
        once: () => undefined,
        off: () => undefined,
      }
      toNodeHandler(dashboard)(request, response)
    })
    await dashboard.close()
    return status
  }

  test('the host of a request over HTTP/2 is checked, too', async () => {
    expect(await answerTo({ headers: { ':authority': 'evil.example' } })).toBe(421)
    expect(await answerTo({ headers: { ':authority': 'localhost:7411' } })).toBe(200)
  })

  test('a client that goes in the middle of its request is no fault of the server', async () => {
    const broken = {
      next: () => Promise.reject(new Error('aborted')),
    }
    const request = { method: 'POST', readableEnded: false, [Symbol.asyncIterator]: () => broken }
    expect(await answerTo({ ...request, headers: { host: 'localhost' } })).toBe(400)
  })

  test('a method that no page sends is refused, and is no fault of the server', async () => {
    expect(await answerTo({ headers: { host: 'localhost' }, method: 'TRACE' })).toBe(400)
  })
})

test('viewers that ask for the rate limits of a slow store wait for one reading', async () => {
  const memory = memoryDriver()
  let readings = 0
  let answer = (): void => undefined
  const slow = new Promise<void>((resolve) => {
    answer = resolve
  })
  const driver: Driver = {
    ...memory,
    extensions: {
      async inspectRates(query) {
        readings += 1
        await slow
        return (await memory.extensions?.inspectRates?.(query)) ?? { rates: [] }
      },
    },
  }
  let nowMs = 0
  const clock = { ...systemClock, now: () => ({ wallMs: nowMs, monotonicMs: nowMs }) }
  const store = new WatchedStore({ driver }, clock)
  const lists = [store.rates()]
  await until(() => readings === 1, { timeoutMs: 30_000, failure: () => 'no reading began' })
  nowMs = 60_000
  lists.push(store.rates())
  await new Promise((resolve) => setImmediate(resolve))
  answer()
  await Promise.all(lists)
  expect(readings).toBe(1)
})

test('a store that never lists its rate limits is an error in time, and is asked again', async () => {
  const time = new VirtualTime()
  let asked = 0
  const inspectRates = (): Promise<never> => {
    asked += 1
    return new Promise(() => {})
  }
  const store = new WatchedStore({ driver: { ...memoryDriver(), extensions: { inspectRates } } }, time.clock())
  for (const times of [1, 2]) {
    const list = rejectionOf(() => store.rates())
    await time.run(CALL_TIMEOUT_MS + 1_000)
    expect(await list).toBeInstanceOf(StoreError)
    expect(asked).toBe(times)
  }
})

test('a viewer that comes at the very end of a reading is served, too', async () => {
  const reading = { leases: [], waiters: [], complete: true, nowMs: 0 }
  const store = { read: async () => reading, nowMs: 0 } as unknown as WatchedStore
  for (let steps = 0; steps < 30; steps += 1) {
    const model = new StoreModel({ store: 0, baseMs: 0, isElection: () => false })
    const poller = new Poller({ store, model, clock: systemClock, everyMs: 1 })
    void poller.refresh()
    for (let step = 0; step < steps; step += 1) await Promise.resolve()
    await new Promise<unknown>((served) => poller.watch(served))
    poller.close()
  }
})

test('a forced release tells one foreign client from another, although neither has a token', async () => {
  const prefix = `${randomUUID()}:`
  const [redis = ''] = inject('servers').redis ?? []
  const port = Number(new URL(redis).port)
  const take = (value: string) => askRedis({ port }, 'SET', `${prefix}a`, value, 'PX', 600_000)
  const stores = [{ url: `${redis}?prefix=${prefix}` }]
  const dashboard = createDashboard({ stores, authorize: 'none', allowActions: true })
  await take('one')
  const { leases } = (await (await dashboard(new Request(`${LOCAL}/api/lock?store=0&name=a`))).json()) as LockDetail
  const shown = { tokens: leases.map(({ token }) => token), marks: leases.flatMap(({ mark }) => mark ?? []) }
  const body = JSON.stringify({ store: 0, name: 'a', ...shown, reason: 'it hangs' })
  const headers = { origin: LOCAL, 'content-type': 'application/json' }
  const end = () => dashboard(new Request(`${LOCAL}/api/force-release`, { method: 'POST', headers, body }))
  await take('two')
  expect((await end()).status).toBe(409)
  expect(await askRedis({ port }, 'GET', `${prefix}a`)).toBe('two')
  await take('one')
  expect(await (await end()).json()).toEqual({ ended: 1 })
  await dashboard.close()
})
