import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { connect } from '../../src/connect.ts'
import { createStore, SLOW, UNTIL_CLOSED } from '../harness/cli.ts'
import { until } from '../harness/processes.ts'
import { type FaultProxy, startProxy } from '../harness/proxy.ts'
import { type Server, startRedis } from '../harness/servers.ts'

let redis: Server
beforeAll(async () => {
  redis = await startRedis()
})
afterAll(() => redis[Symbol.asyncDispose]())

/** Nothing listens on port 1. */
const away: readonly (readonly [store: string, url: string, says: RegExp])[] = [
  ['redis', 'redis://127.0.0.1:1', /cannot reach redis:\/\/127.0.0.1:1: connection refused. Is the server running\?/],
  ['redlock', 'redlock://127.0.0.1:1', /node 1: .*cannot reach redis:\/\/127.0.0.1:1: connection refused/],
  ['cluster', 'redis+cluster://127.0.0.1:1', /cannot reach redis\+cluster:\/\/127.0.0.1:1: connection refused/],
  [
    'postgres',
    'postgres://me@127.0.0.1:1/app',
    /postgres:\/\/127.0.0.1:1\/app could not be reached: connection refused/,
  ],
  ['advisory', 'postgres+advisory://me@127.0.0.1:1/app', /could not be reached: connection refused/],
]

describe.concurrent('holdfast run: a store that does not answer', SLOW, () => {
  test.each(away)('%s: it reports the outage, and ends with 69 after --store-timeout', async (_, url, says) => {
    await using store = createStore()
    const run = await store.run(['run', 'job', '--url', url, '--store-timeout', '1', '--', 'echo', 'ran'])
    expect(run).toMatchObject({ code: 69, stdout: '' })
    expect(run.stderr).toMatch(says)
    expect(run.stderr).toMatch(/ Retrying for 1 s\n/)
  })

  test('it reports the outage while it retries, and runs its command when the store is back', async () => {
    await using store = createStore()
    await using proxy = await startProxy(redis.port)
    cut(proxy)
    const run = store.start(['run', 'job:back', '--url', `redis://127.0.0.1:${proxy.port}`, '--', 'echo', 'ran'])
    await run.reports(/holdfast: redis failed to acquire: .*Retrying for 60 s\n/)
    proxy.redirect(redis.port)
    expect(await run.end()).toBe(0)
    expect(run.stdout).toBe('ran\n')
    expect(run.stderr).toMatch(/holdfast: the store answers again\n/)
  })

  test('it reports a server that accepts connections but never answers', async () => {
    await using store = createStore()
    const silent = createServer(() => {}).listen(0, '127.0.0.1')
    await once(silent, 'listening')
    const { port } = silent.address() as AddressInfo
    const args = ['run', 'job', '--url', `redis://127.0.0.1:${port}`, '--store-timeout', '1', '--', 'echo', 'ran']
    const run = await store.run(args)
    silent.close()
    expect(run).toMatchObject({ code: 69, stdout: '' })
    expect(run.stderr).toMatch(/has not answered for 2 s. Retrying for 1 s\n.*gave up/s)
  })

  test('it ends with 69 if the store goes away while it waits for the lock', async () => {
    await using store = createStore()
    await using proxy = await startProxy(redis.port)
    const holder = store.start(['run', 'job:held', '--url', redis.url, '--', ...UNTIL_CLOSED])
    await holder.says(/up/)
    const url = `redis://127.0.0.1:${proxy.port}`
    const run = store.start(['run', 'job:held', '--url', url, '--store-timeout', '1', '--', 'echo', 'ran'])
    const driver = await connect(redis.url)
    const isWaiting = async (): Promise<boolean> =>
      (await driver.inspect({ lockName: 'job:held' })).waiters.length === 1
    await until(isWaiting, { timeoutMs: 30_000, failure: () => `the lock has no waiter: ${run.stderr}` })
    await driver.close()
    cut(proxy)
    expect(await run.end()).toBe(69)
    expect(run.stdout).toBe('')
    expect(await holder.end()).toBe(0)
  })

  test('with --no-wait it reports the outage once, and does not retry', async () => {
    await using store = createStore()
    const run = await store.run(['run', 'job', '--no-wait', '--url', 'redis://127.0.0.1:1', '--', 'echo', 'ran'])
    expect(run).toMatchObject({ code: 69, stdout: '' })
    expect(run.stderr).toMatch(/^holdfast: redis failed to acquire: cannot reach [^\n]*\n$/)
  })

  test('a --store-timeout of 0 is wrong usage', async () => {
    await using store = createStore()
    expect(await store.run(['run', 'job', '--store-timeout', '0', '--', 'true'])).toMatchObject({ code: 64 })
  })
})

/** Ends all connections, and lets no new one through. */
function cut(proxy: FaultProxy): void {
  proxy.redirect(1)
  proxy.cut()
}
