import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { createServer } from 'node:tls'
import { Redis } from 'ioredis'
import { createClient, createClientPool } from 'redis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import type { Claim, Driver } from '../../../src/core/driver.ts'
import { serverFacts, warningsOf } from '../../../src/drivers/redis/checks.ts'
import { openIoredis } from '../../../src/drivers/redis/open-ioredis.ts'
import { openNodeRedis } from '../../../src/drivers/redis/open-node-redis.ts'
import { redisUrl } from '../../../src/drivers/redis/url.ts'
import { openRedis, type RedisClient, redisDriver, redisFence } from '../../../src/drivers/redis.ts'
import { DistributedLock } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import { type Server, startRedis } from '../../harness/servers.ts'
import { askRedis } from '../../harness/wire.ts'

let server: Server
let counter = 0
const clients: Redis[] = []
const nodeClients: { destroy(): void }[] = []

beforeAll(async () => {
  server = await startRedis()
  await askRedis(server, 'ACL', 'SETUSER', 'me', 'on', '>se@cret', '~*', '&*', '+@all')
})

afterAll(async () => {
  for (const client of clients) client.disconnect()
  for (const client of nodeClients) client.destroy()
  await server[Symbol.asyncDispose]()
})

describe('redis: clients', () => {
  it('the password, database and prefix of a URL are used, and close ends the connections', async () => {
    const driver = await openRedis(`redis://me:se%40cret@127.0.0.1:${server.port}/3?prefix=mine:`)
    const held = claim()
    await granted(driver, held)
    const control = client({ db: 3 })
    assert.equal(await control.exists(`mine:${held.lockName}`), 1)
    assert.deepEqual(driver.extensions?.reopen?.name, 'openRedis')
    await driver.close()
    await assert.rejects(driver.acquire([held], newCall()), { code: 'CLOSED' })
    const mine = async (): Promise<number> => String(await control.client('LIST')).split('user=me').length - 1
    await until(async () => (await mine()) === 0, { timeoutMs: 10_000, failure: () => 'its connections stay open' })
  })

  it('a client that returns numbers as text works', async () => {
    const driver = redisDriver({ client: client({ stringNumbers: true }) })
    const held = claim()
    const [answer] = await driver.acquire([held], newCall())
    assert.ok(answer && 'granted' in answer && answer.granted, String(answer))
    const { fencingToken, acquiredAtMs } = answer
    assert.ok(Number.isSafeInteger(fencingToken) && Number.isSafeInteger(acquiredAtMs))
    const [refused] = await driver.acquire([{ ...claim(held.lockName), waiterTtlMs: 1_000 }], newCall())
    assert.ok(refused && 'granted' in refused && !refused.granted)
    assert.equal(typeof refused.holder?.expiresAtMs, 'number')
    const [shown] = (await driver.inspect({ lockName: held.lockName })).leases
    assert.equal(typeof shown?.expiresAtMs, 'number')
    assert.deepEqual(await driver.renew([{ ...held, fencingToken }]), ['renewed'])
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    assert.deepEqual((await driver.inspect({ lockName: claim().lockName })).leases, [])
    const limits = [{ limit: 2, periodMs: 60_000, burst: 2 }]
    const [rate] = (await driver.consume?.([{ name: held.lockName, cost: 1, limits }])) ?? []
    assert.ok(rate && !(rate instanceof Error) && rate.allowed)
    assert.equal(rate.remaining, 1)
  })

  it.each([
    ['ioredis, RESP2', () => client({ protocol: 2 })],
    ['ioredis, RESP3', () => client({ protocol: 3 })],
    ['ioredis, numbers as text', () => client({ stringNumbers: true })],
    ['redis, RESP2', () => nodeClient(2)],
    ['redis, RESP3', () => nodeClient(3)],
  ])('lists are answered entry by entry, all alike or not: %s', async (_, open) => {
    const driver = redisDriver({ client: await open(), onWarning() {} })
    const held = Array.from({ length: 5 }, () => claim())
    const answers = await driver.acquire(held, newCall())
    const leases = held.map(({ lockName, claimId }, at) => {
      const answer = answers[at]
      assert.ok(answer && 'granted' in answer && answer.granted, String(answer))
      return { lockName, claimId, fencingToken: answer.fencingToken, ttlMs: 60_000 }
    })
    const shown = await Promise.all(held.map(({ lockName }) => driver.inspect({ lockName })))
    const tokens = shown.map(({ leases: [lease] }) => lease?.fencingToken)
    assert.deepEqual(
      tokens,
      leases.map(({ fencingToken }) => fencingToken),
    ) // the answer is what the server stores
    const [first, ...others] = leases as [(typeof leases)[0], ...typeof leases]
    const reader = { ...claim(), mode: 'shared' as const }
    const mixed = [held[1], claim(first.lockName), reader, { ...claim(first.lockName), waiterTtlMs: 60_000 }, claim()]
    const granted = (await driver.acquire(mixed as Claim[], newCall())).map(
      (each) => !(each instanceof Error) && each.granted,
    )
    assert.deepEqual(granted, [true, false, true, false, true])
    assert.deepEqual(
      await driver.renew(leases),
      leases.map(() => 'renewed'),
    )
    assert.deepEqual(await driver.renew([{ ...first, fencingToken: 1 }, ...others]), [
      'lost',
      ...others.map(() => 'renewed'),
    ])
    assert.deepEqual(await driver.release([{ ...first, fencingToken: 1 }, ...others]), [
      false,
      ...others.map(() => true),
    ])
    assert.deepEqual(await driver.release(leases), [true, ...others.map(() => false)])
    await driver.close()
  })

  it('there is a warning for a server before 6.2, and none for a later one', async () => {
    const own = client()
    const facts = await serverFacts((args) => own.call(...(args as [string])))
    assert.ok(
      facts.major >= 6 && facts.role === 'master' && facts.evictionPolicy === 'noeviction',
      JSON.stringify(facts),
    )
    const codesOf = (major: number, minor: number) => warningsOf({ ...facts, major, minor }).map(({ code }) => code)
    for (const [major, minor] of [
      [6, 2],
      [7, 0],
      [8, 0],
      [10, 1],
    ] as const)
      assert.deepEqual(codesOf(major, minor), [])
    for (const [major, minor] of [
      [5, 0],
      [6, 0],
      [4, 9],
    ] as const)
      assert.deepEqual(codesOf(major, minor), ['TOO_OLD'])
    assert.match(warningsOf({ ...facts, major: 6, minor: 0 })[0]?.message ?? '', /is 6\.0: locks need 6\.2 or later/)
  })

  it('the database that the caller’s client has selected is used, and not changed', async () => {
    const own = client({ db: 5 })
    const held = claim()
    await granted(redisDriver({ client: own }), held)
    assert.equal(await own.exists(`lock:${held.lockName}`), 1)
    assert.match(String(await own.call('CLIENT', 'INFO')), / db=5 /)
  })

  it('close leaves the caller’s client open and closes only the subscription', async () => {
    const own = createClient({ url: server.url })
    await own.connect()
    const driver = redisDriver({ client: own })
    const stop = await driver.listen?.({
      wake() {},
      granted() {},
      lost() {},
      disconnected: () => assert.fail('disconnected'),
    })
    await stop?.()
    await driver.close()
    assert.equal(await own.ping(), 'PONG')
    own.destroy()
  })

  it('a client with a key prefix and an object that is no client are refused', () => {
    assert.throws(() => redisDriver({ client: client({ keyPrefix: 'app:' }) }), /keyPrefix must be .*`prefix` instead/)
    assert.throws(() => redisDriver({ client: {} as RedisClient }), { code: 'INVALID_ARGUMENT', argument: 'client' })
    assert.throws(() => redisDriver({ client: client(), replicas: { count: 0 } }), { argument: 'replicas.count' })
    assert.throws(() => redisDriver({ client: client(), callTimeoutSeconds: 0 }), {
      argument: 'callTimeoutSeconds',
    })
    assert.throws(() => redisFence({ client: client(), callTimeoutSeconds: Number.NaN }), {
      argument: 'callTimeoutSeconds',
    })
  })

  it('a wrong password is an error that says so, and no error is uncaught', async () => {
    const driver = await openRedis(`redis://me:wrong@127.0.0.1:${server.port}`)
    await assert.rejects(driver.acquire([claim()], newCall()), { code: 'STORE_UNAVAILABLE' })
    await driver.close()
  })

  it('with an empty prefix the lock is the bare name, and only locks are shown', async () => {
    const own = client({ db: 7 })
    await own.set('other data', 'x')
    await own.set('job', 'another client’s lock', 'PX', 60_000)
    const driver = redisDriver({ client: own, prefix: '' })
    const held = claim()
    await granted(driver, held)
    const [refused] = await driver.acquire([claim('job')], newCall())
    assert.ok(refused && 'granted' in refused && !refused.granted && refused.holder?.holderId === 'another client')
    const { leases } = await driver.inspect({})
    assert.deepEqual(
      leases.map(({ lockName }) => lockName),
      [held.lockName],
    )
  })

  it('a value of any type that another client stored at the key is a held lock', async () => {
    const own = client({ db: 8 })
    const driver = redisDriver({ client: own })
    await own.rpush('lock:list', 'x')
    await own.set('lock:json', '["looks like ours"]')
    await own.set('lock:text', 'x')
    for (const lockName of ['list', 'json', 'text']) {
      const waiting = { ...claim(lockName), waiterTtlMs: 1_000 }
      const [answer] = await driver.acquire([waiting], newCall())
      assert.ok(answer && 'granted' in answer && !answer.granted, lockName)
      assert.deepEqual(await driver.release([{ lockName, claimId: waiting.claimId }]), [false])
      assert.equal((await driver.inspect({ lockName })).leases.length, 1)
      assert.equal(await own.exists(`lock:${lockName}`), 1)
    }
  })

  it('nothing is left behind when locks, readers, waiters and rates have ended', async () => {
    const own = client({ db: 9 })
    const driver = redisDriver({ client: own })
    const lockName = 'busy'
    const [reader, writer] = [
      { ...claim(lockName), mode: 'shared' as const },
      { ...claim(lockName), waiterTtlMs: 60_000 },
    ]
    await granted(driver, reader)
    await driver.acquire([writer], newCall())
    await driver.consume?.([{ name: 'calls', cost: 1, limits: [{ limit: 1, periodMs: 3_600_000, burst: 1 }] }])
    for (const key of await own.keys('*')) {
      if (key !== 'holdfast:token') assert.ok((await own.pttl(key)) > 0, `${key} would stay for ever`)
    }
    await driver.release([reader])
    await driver.release([writer])
    const left = (await own.keys('*')).filter((key) => !key.startsWith('holdfast:{lock:calls}:r'))
    assert.deepEqual(left, ['holdfast:token'])
  })

  it('a pool of node-redis is refused with a reason: WAIT and subscriptions need one connection', () => {
    const pool = createClientPool({ url: server.url })
    for (const create of [redisDriver, redisFence]) {
      assert.throws(() => create({ client: pool as never }), {
        code: 'INVALID_ARGUMENT',
        message: /client must be one client \(createClient\), not a pool: .*WAIT.*subscription/,
      })
    }
  })

  it('the lock of another client is reported without times, which are unknown', async () => {
    const lock = new DistributedLock({ driver: redisDriver({ client: client() }) })
    await client().set('lock:foreign', 'theirs')
    const endless = await lock.acquire('foreign', { blocking: false })
    assert.ok(!endless.acquired)
    assert.match(endless.error, /^"foreign" is held by another client \(since: unknown, no expiry\)/)
    await client().set('lock:foreign', 'theirs', 'PX', 60_000)
    await assert.rejects(lock.hold('foreign', { blocking: false }), {
      message: /^"foreign" is held by another client \(since: unknown, expires: 20\d\d-[^)]*Z\)/,
    })
  })

  for (const [through, open] of Object.entries({ ioredis: openIoredis, 'node-redis': openNodeRedis })) {
    it(`the error says that the server expects TLS, through ${through}`, async () => {
      using tls = await startTls()
      const opened = await open(redisUrl(`redis://127.0.0.1:${tls.port}`).target, {})
      assert.ok(opened !== undefined)
      const driver = redisDriver({ client: opened.client, onWarning() {} })
      const [answer] = await driver.acquire([claim()], newCall()).catch((error: unknown) => [error])
      assert.match(String(answer), /cannot reach redis:.*closed.*rediss|Protocol error.*rediss/)
      await driver.close()
      await opened.close()
    })
  }

  it('the guard runs the caller’s script, and refuses an invalid token before it sends anything', async () => {
    const fence = redisFence({ client: client() })
    const push = "return redis.call('RPUSH', KEYS[1], unpack(ARGV))"
    assert.equal(await fence.run(push, { token: 10, keys: ['list'], args: ['a', 'b'] }), 2)
    assert.equal(await fence.run(push, { token: { fencingToken: 10 }, keys: ['list'], args: ['c'] }), 3)
    await assert.rejects(fence.run(push, { token: 9, keys: ['list'], args: ['d'] }), {
      code: 'STALE_TOKEN',
      resource: 'list',
      fencingToken: 9,
      largestToken: 10,
    })
    assert.equal(await client().llen('list'), 3)
    assert.equal(await fence.set('text', 'x', 11, ['PX', '60000']), 'OK')
    for (const token of [0, 1.5, Number.NaN]) await assert.rejects(fence.set('text', 'y', token), { argument: 'token' })
  })

  it.each([
    ['ioredis', () => client()],
    ['redis', () => nodeClient(2)],
  ])(
    'failure 84: the guard stores a value byte for byte, and refuses what is neither text nor bytes: %s',
    async (_, open) => {
      const fence = redisFence({ client: await open() })
      const control = client()
      const texts = ['pay\u00e9 \u20ac \u{1f600}', '', '\r\n$5\r\n', '\0']
      const keys = texts.map((_, at) => `bytes:${at}:${Math.random()}`)
      // At the same time: a wrong length would make the rest of one value the next command.
      await Promise.all(texts.map((text, at) => fence.set(keys[at] ?? '', text, 1)))
      assert.deepEqual(await control.mget(keys), texts)
      for (const bytes of [Buffer.from('paid'), new Uint8Array([255, 0, 13, 10]).subarray(1)]) {
        assert.equal(await fence.set('bytes', bytes, 1), 'OK')
        assert.deepEqual(await control.getBuffer('bytes'), Buffer.from(bytes))
      }
      const others: unknown[] = [7, true, null, undefined, { a: 1 }, ['x'], '\ud800']
      for (const value of others) {
        await assert.rejects(fence.set('other', value as string, 1), { code: 'INVALID_ARGUMENT' }, String(value))
      }
      await assert.rejects(fence.set('other', 'x', 1, ['EX', 60 as never]), { code: 'INVALID_ARGUMENT' })
      await assert.rejects(fence.run('return 1', { token: 1, keys: [7 as never] }), { code: 'INVALID_ARGUMENT' })
      assert.equal(await control.exists('other'), 0)
    },
  )

  for (const reply of [[0, 1], [1_763_266_293_000, 0], [1_763_266_293_000, 2 ** 60], [1_763_266_293_000], 'OK', null]) {
    it(`the impossible reply ${JSON.stringify(reply)} grants nothing and is a StoreError`, async () => {
      const through = client()
      through.call = async () => structuredClone(reply)
      const [answer] = await redisDriver({ client: through, onWarning() {} })
        .acquire([claim()], newCall())
        .catch((error: unknown) => [error])
      assert.equal((answer as { code?: string }).code, 'STORE_UNAVAILABLE', JSON.stringify(answer))
    })
  }
})

/** A server that only speaks TLS. It needs no certificate to refuse other connections. */
async function startTls(): Promise<{ port: number } & Disposable> {
  const tls = createServer(() => {}).listen(0, '127.0.0.1')
  tls.on('tlsClientError', () => {})
  await once(tls, 'listening')
  return { port: (tls.address() as AddressInfo).port, [Symbol.dispose]: () => tls.close() }
}

function client(options: { db?: number; keyPrefix?: string; stringNumbers?: boolean; protocol?: 2 | 3 } = {}): Redis {
  const opened = new Redis({ port: server.port, commandTimeout: 5_000, ...options })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}

async function nodeClient(protocol: 2 | 3): Promise<RedisClient> {
  const opened = createClient({ url: server.url, RESP: protocol })
  opened.on('error', () => {})
  await opened.connect()
  nodeClients.push(opened)
  return opened as unknown as RedisClient
}

function claim(lockName = `clients:${++counter}`): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  return { lockName, claimId, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 }
}

async function granted(driver: Driver, of: Claim): Promise<void> {
  const [answer] = await driver.acquire([of], newCall())
  assert.ok(answer && 'granted' in answer && answer.granted, String(answer))
}
