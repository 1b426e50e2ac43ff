import { describe, expect, it } from 'vitest'
import { withoutSecrets } from '../../src/core/secrets.ts'
import { memoryDriver } from '../../src/drivers/memory.ts'
import {
  DistributedLock,
  type DistributedLockOptions,
  Fence,
  InvalidArgumentError,
  type LockOptions,
  RateLimiter,
} from '../../src/index.ts'
import { rateLimitExpress } from '../../src/primitives/rate/http.ts'

const circular: Record<string, unknown> = {}
circular['self'] = circular

/** The argument, the value, and a part of the rule that the error must contain. */
const badOptions: [keyof LockOptions, unknown, RegExp][] = [
  ...[0, -1, Number.NaN, Number.POSITIVE_INFINITY, 0.01, 1e9, '30', null].map(
    (value): [keyof LockOptions, unknown, RegExp] => ['timeoutSeconds', value, /from 0.05 to 31536000/],
  ),
  ['blockingTimeoutSeconds', -1, /from 0 to/],
  ['blockingTimeoutSeconds', Number.NaN, /from 0 to/],
  ['blocking', 'yes', /true or false/],
  ['heartbeat', 1, /true or false/],
  ['minHoldSeconds', -1, /from 0 to/],
  ['maxHoldSeconds', 0, /from 0.05 to/],
  ['signal', {}, /an AbortSignal/],
  ['metadata', 'text', /plain object/],
  ['metadata', [1], /plain object/],
  ['metadata', circular, /without circular references/],
  ['metadata', { at: new Date() }, /JSON keeps unchanged/],
  ['metadata', { big: 1n }, /JSON keeps unchanged/],
  ['metadata', { nan: Number.NaN }, /JSON keeps unchanged/],
  ['metadata', { fn: () => 1 }, /JSON keeps unchanged/],
  ['metadata', { list: [undefined] }, /JSON keeps unchanged/],
  ['metadata', { text: 'a\0b' }, /JSON keeps unchanged/],
  ['metadata', { text: '\ud800' }, /JSON keeps unchanged/],
  ['metadata', { text: 'x'.repeat(20_000) }, /at most 16384 bytes/],
]

const badNames: unknown[] = ['', 'x'.repeat(256), 'x'.repeat(10_000), 'nul\0', 'lone \ud800', 7, undefined, null]

const badConstruction: [DistributedLockOptions, string][] = [
  [{ url: 'carrier-pigeon://coop' }, 'url'],
  [{ url: '' }, 'url'],
  [{ url: 'no scheme' }, 'url'],
  [{ url: 'memory:', driver: memoryDriver() }, 'url'],
  [{ holderId: '' }, 'holderId'],
  [{ holderId: 'x'.repeat(256) }, 'holderId'],
  [{ reacquire: 'maybe' as 'refuse' }, 'reacquire'],
  [{ callTimeoutSeconds: 0 }, 'callTimeoutSeconds'],
  [{ waiterTtlSeconds: Number.NaN }, 'waiterTtlSeconds'],
  [{ heartbeatThread: { stalledAfterSeconds: -1 } }, 'heartbeatThread.stalledAfterSeconds'],
]

describe('rule 13: bad input is rejected before anything is sent, with argument, value and rule', () => {
  const sent: unknown[] = []
  const driver = memoryDriver()
  const lock = new DistributedLock({
    driver: {
      ...driver,
      acquire(claims, call) {
        sent.push(...claims)
        return driver.acquire(claims, call)
      },
    },
  })

  it.each(badOptions)('%s: %s', async (argument, value, rule) => {
    const error = await failureOf(lock.acquire('name', { [argument]: value } as LockOptions))
    expect(error.argument.startsWith(argument)).toBe(true)
    expect(error.rule).toMatch(rule)
    expect(error.message).toContain(error.argument)
    expect(error.code).toBe('INVALID_ARGUMENT')
    expect(sent).toEqual([])
  })

  it.each(badNames)('lock name %j', async (name) => {
    for (const call of [
      lock.acquire(name as string),
      lock.release(name as string),
      lock.extend(name as string, 5),
      lock.withLock(name as string, async () => 1),
      lock.hold(name as string),
    ]) {
      const error = await failureOf(call)
      expect(error).toMatchObject({ argument: 'lockName', value: name })
      expect(error.message.length).toBeLessThan(250)
    }
    expect(sent).toEqual([])
  })

  it.each([0, -1, Number.NaN, Number.POSITIVE_INFINITY])('extend by %s', async (seconds) => {
    expect(await failureOf(lock.extend('name', seconds))).toMatchObject({
      argument: 'seconds',
      value: seconds,
    })
  })

  it('a callback that is not a function', async () => {
    expect(await failureOf(lock.withLock('name', 'fn' as never))).toMatchObject({ argument: 'fn', value: 'fn' })
    expect(sent).toEqual([])
  })

  it.each(badConstruction)('an instance created with %j', (options, argument) => {
    expect(() => new DistributedLock(options)).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT', argument }))
  })

  it('each property of metadata is read once, so that what is checked is what is stored', async () => {
    for (const later of [1n, Number.NaN, undefined, 'x'.repeat(20_000), { at: new Date() }]) {
      let reads = 0
      const metadata = {
        get a() {
          reads += 1
          return reads === 1 ? 'first' : later
        },
      }
      const instance = new DistributedLock({ driver: memoryDriver() })
      const lease = await instance.hold('name', { metadata })
      expect(lease.metadata).toEqual({ a: 'first' })
      expect(reads).toBe(1)
      await instance.close()
    }
  })

  it('a proxy that cannot be read is a bad argument like any other', async () => {
    const { proxy, revoke } = Proxy.revocable({}, {})
    revoke()
    const calls: (() => unknown)[] = [
      () => lock.acquire(proxy as never),
      () => lock.acquire('name', proxy as never),
      () => lock.acquire('name', { timeoutSeconds: proxy as never }),
      () => lock.acquire('name', { signal: proxy as never }),
      () => lock.withLocks(proxy as never, () => 1),
      () => lock.acquire('name', { under: proxy as never }),
      () => new Fence().accept('name', proxy as never),
      () => lock.acquire('name', { metadata: proxy }),
      () => lock.acquire('name', { metadata: { a: proxy } }),
      () => new DistributedLock({ driver: proxy as never }),
      () => new DistributedLock({ driver, clock: proxy as never }),
      () => new RateLimiter({ driver, limits: { limit: 1, periodSeconds: 1 }, fallback: proxy as never }),
      () => rateLimitExpress({ limiter: proxy as never, key: () => '' }),
      () => new DistributedLock({ driver, holderId: proxy as never }),
    ]
    for (const call of calls) {
      const error = await failureOf(Promise.resolve().then(call))
      expect(error.message).toContain('an object that cannot be read')
    }
  })

  it('the error does not contain a password', () => {
    expect(() => new DistributedLock({ url: 'mysql://user:secret@host' })).toThrow(/mysql:\/\/…@host/)
  })

  it.each([
    ['"postgres://h/db?password=S3CR3T"', '"postgres://h/db?password=…"'],
    ['postgres://h/db?a=1&sslpassword=S3"C&b=2 is wrong', 'postgres://h/db?a=1&sslpassword=…&b=2 is wrong'],
    [`"postgres://:x@h:1/db?schema=S3'CR3T&db="\nTry`, '"postgres://…@h:1/db?…"\nTry'],
    ['redis://me:x@h#S3CR3T', 'redis://…@h?…'],
    ['see https://example.com/a?page=2#top', 'see https://example.com/a?page=2#top'],
  ])('withoutSecrets removes parameters that may be passwords: %s', (text, shown) => {
    expect(withoutSecrets(text)).toBe(shown)
  })

  it('a URL with a password in a parameter is not shown in place of another argument', async () => {
    const lock = new DistributedLock({ driver: memoryDriver() })
    const seconds = 'postgres://h/db?password=S3CR3T' as unknown as number
    await expect(lock.acquire('name', { timeoutSeconds: seconds })).rejects.toThrow(/^(?!.*S3CR3T)/s)
    await lock.close()
  })

  it('withoutSecrets removes the login from URLs in a text, except from an example', () => {
    const text = `redis://u:p'"w@h, redis://user:password@host and redis://user:password@x@h`
    expect(withoutSecrets(text)).toBe('redis://…@h, redis://user:password@host and redis://…@h')
  })

  it('an unknown event, and a listener that is not a function', () => {
    const unknown = 'aquired' as 'acquired'
    expect(() => lock.on(unknown, () => undefined)).toThrow(/event must be one of 'requested', .* but is "aquired"/)
    expect(() => lock.on('acquired', 'log' as never)).toThrow(/listener must be a function, but is "log"/)
  })
})

async function failureOf(call: Promise<unknown>): Promise<InvalidArgumentError> {
  const error: unknown = await call.then(
    () => undefined,
    (reason) => reason,
  )
  if (!(error instanceof InvalidArgumentError)) throw new Error(`not rejected as a bad argument: ${String(error)}`)
  return error
}
