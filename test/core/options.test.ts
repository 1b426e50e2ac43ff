import { afterEach, describe, expect, it, vi } from 'vitest'
import { chooseUrl, connect } from '../../src/connect.ts'
import { nearestName } from '../../src/core/options.ts'
import { memoryDriver } from '../../src/drivers/memory.ts'
import { migratePostgres, migrationScript, postgresDriver, postgresFence } from '../../src/drivers/postgres.ts'
import { lockInTransaction, postgresAdvisoryDriver } from '../../src/drivers/postgres-advisory.ts'
import { redisDriver, redisFence } from '../../src/drivers/redis.ts'
import { redlockDriver } from '../../src/drivers/redlock.ts'
import { sqliteDriver } from '../../src/drivers/sqlite.ts'
import {
  DistributedLock,
  Fence,
  getDistributedLock,
  InvalidArgumentError,
  LeaderElection,
  OnceOnly,
  RateLimiter,
  ReadWriteLock,
  Semaphore,
} from '../../src/index.ts'
import { rateLimitFetch } from '../../src/primitives/rate/http.ts'
import { WebLocks } from '../../src/primitives/web-locks/web-locks.ts'
import { rejectionOf } from '../harness/rejection.ts'

afterEach(() => {
  vi.unstubAllEnvs()
})

const limits = { limit: 1, periodSeconds: 1 }
const url = 'memory:'

/** Everything that accepts the options of an instance. */
const primitives: Record<string, (options: object) => unknown> = {
  DistributedLock: (options) => new DistributedLock(options),
  ReadWriteLock: (options) => new ReadWriteLock(options),
  Semaphore: (options) => new Semaphore({ ...options, limit: 1 }),
  LeaderElection: (options) => new LeaderElection({ ...options, name: 'leader' }),
  OnceOnly: (options) => new OnceOnly(options),
  RateLimiter: (options) => new RateLimiter({ ...options, limits }),
  WebLocks: (options) => new WebLocks(options),
}

describe.each(Object.entries(primitives))('%s: no store is chosen silently', (_, create) => {
  it.each([
    ['undefined, as from an environment variable that is not set', { url: undefined }, 'url'],
    ['empty', { url: '' }, 'url'],
    ['null', { url: null }, 'url'],
    ['empty beside a driver', { url: '', driver: memoryDriver() }, 'url'],
    ['absent, and driver undefined', { driver: undefined }, 'driver'],
    ['absent, and driver null', { driver: null }, 'driver'],
    ['undefined, and driver undefined', { url: undefined, driver: undefined }, 'url'],
  ])('a url that is %s is rejected', (_case, options, argument) => {
    vi.stubEnv('HOLDFAST_URL', 'memory:')
    const error = thrownBy(() => create(options))
    expect(error).toBeInstanceOf(InvalidArgumentError)
    expect(error).toMatchObject({ argument })
  })

  it('an empty HOLDFAST_URL is an error, not the default', () => {
    vi.stubEnv('HOLDFAST_URL', '')
    expect(thrownBy(() => create({}))).toMatchObject({ code: 'INVALID_ARGUMENT', argument: 'HOLDFAST_URL' })
  })

  it('a url is enough if the driver is undefined, and a driver if the url is', () => {
    create({ url, driver: undefined })
    create({ url: undefined, driver: memoryDriver() })
  })

  it('a clock or a source of randomness without the required methods is rejected', () => {
    for (const name of ['clock', 'random']) {
      for (const value of [null, {}, 5]) {
        const error = thrownBy(() => create({ url, [name]: value }))
        expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', argument: name })
      }
    }
  })

  it('an unknown option is rejected, and the error suggests the right one', () => {
    expect(thrownBy(() => create({ uri: 'redis://host' }))).toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringMatching(/^options has no option "uri": did you mean url\? \(known: /),
    })
  })
})

describe('options that are not an object', () => {
  const creators: [string, (options: never) => unknown][] = [
    ['DistributedLock', (options) => new DistributedLock(options)],
    ['ReadWriteLock', (options) => new ReadWriteLock(options)],
    ['Semaphore', (options) => new Semaphore(options)],
    ['LeaderElection', (options) => new LeaderElection(options)],
    ['OnceOnly', (options) => new OnceOnly(options)],
    ['RateLimiter', (options) => new RateLimiter(options)],
    ['WebLocks', (options) => new WebLocks(options)],
    ['getDistributedLock', getDistributedLock],
    ['acquire', (options) => lock().acquire('a', options)],
    ['close', (options) => lock().close(options)],
  ]

  it.each(creators)('%s rejects null, an array and a string', async (_, create) => {
    vi.stubEnv('HOLDFAST_URL', 'memory:')
    for (const options of [null, [], ['memory:'], 'memory:']) {
      const error = await rejectionOf(() => create(options as never))
      expect(error).toMatchObject({ code: 'INVALID_ARGUMENT', argument: 'options', rule: 'an object' })
    }
  })

  it('null is rejected as the value of an option, even if the option has a default', async () => {
    const calls: [string, () => unknown][] = [
      ['defaults', () => new DistributedLock({ url, defaults: null as never })],
      ['reacquire', () => new DistributedLock({ url, reacquire: null as never })],
      ['timeoutSeconds', () => new LeaderElection({ url, name: 'a', timeoutSeconds: null as never })],
      ['fallbackSeconds', () => new RateLimiter({ url, limits, fallbackSeconds: null as never })],
      ['cost', () => limiter().consume('a', { cost: null as never })],
      ['blockingTimeoutSeconds', () => limiter().wait('a', { blockingTimeoutSeconds: null as never })],
    ]
    for (const [argument, call] of calls) {
      expect(await rejectionOf(call)).toMatchObject({ code: 'INVALID_ARGUMENT', argument, value: null })
    }
  })
})

describe('the store of an instance', () => {
  it('is the embedded default only if neither a url nor HOLDFAST_URL is set', () => {
    vi.stubEnv('HOLDFAST_URL', undefined)
    expect(chooseUrl()).toBe('sqlite:')
    vi.stubEnv('HOLDFAST_URL', 'memory:')
    expect(chooseUrl()).toBe('memory:')
    expect(chooseUrl('memory:named')).toBe('memory:named')
  })

  it('getDistributedLock rejects an empty HOLDFAST_URL, too', () => {
    vi.stubEnv('HOLDFAST_URL', '')
    expect(() => getDistributedLock()).toThrow(/HOLDFAST_URL must be the URL of a store, or not set/)
  })

  it.each(['MEMORY:', 'Memory:jobs'])('a scheme is not case-sensitive: %s', async (upper) => {
    await (await connect(upper)).close()
  })
})

/** Calls with an unknown option, and what the error says about it. */
const calls: [what: string, call: () => unknown, message: RegExp][] = [
  ['acquire', () => lock().acquire('a', { ttl: 5 } as object), /no option "ttl": did you mean timeoutSeconds\?/],
  ['hold', () => lock().hold('a', { timeoutMs: 5 } as object), /no option "timeoutMs": did you mean timeoutSeconds\?/],
  ['withLock', () => lock().withLock('a', () => 1, { wait: 5 } as object), /did you mean blockingTimeoutSeconds\?/],
  ['withLocks', () => lock().withLocks(['a'], () => 1, { blockng: true } as object), /did you mean blocking\?/],
  ['permits of a lock', () => lock().acquire('a', { permits: 1 } as object), /no option "permits" \(known/],
  [
    'an instance, for its calls',
    () => new DistributedLock({ url, ttl: 5 } as object),
    /mean defaults: { timeoutSeconds }\?/,
  ],
  [
    'an option of a claim, for an instance',
    () => new DistributedLock({ url, timeoutSeconds: 5 } as object),
    /no option "timeoutSeconds": did you mean defaults: { timeoutSeconds }\?/,
  ],
  [
    'blocking, for an instance',
    () => new Semaphore({ url, limit: 1, blocking: true } as object as never),
    /did you mean defaults: { blocking }\?/,
  ],
  ['defaults', () => new DistributedLock({ url, defaults: { ttl: 5 } as object }), /did you mean timeoutSeconds\?/],
  ['close', () => lock().close({ drain: 5 } as object), /did you mean drainSeconds\?/],
  ['getDistributedLock', () => getDistributedLock({ uri: 'memory:' } as object), /did you mean url\?/],
  ['forceRelease', () => lock().forceRelease('a', { by: 'me', form: 1 } as never), /no option "form"/],
  ['acquireRead', () => new ReadWriteLock({ url }).acquireRead('a', { ttl: 5 } as object), /timeoutSeconds/],
  ['permits', () => new Semaphore({ url, limit: 1 }).acquire('a', { permit: 1 } as object), /did you mean permits\?/],
  ['campaign', () => election().campaign({ values: 1 } as object), /did you mean value\?/],
  ['run of an election', () => election().run(() => 1, { rest: 1 } as object), /did you mean restSeconds\?/],
  ['observe', () => election().observe({ every: 1 } as object), /did you mean everySeconds\?/],
  ['once', () => new OnceOnly({ url }).once('a', () => 1, { forSeconds: 1, ttl: 1 } as never), /timeoutSeconds\?/],
  ['everyTick', () => new OnceOnly({ url }).everyTick('a', () => 1, { evrySeconds: 1 } as object), /everySeconds\?/],
  ['consume', () => limiter().consume('a', { costs: 1 } as object), /did you mean cost\?/],
  ['wait', () => limiter().wait('a', { blockingTimeout: 1 } as object), /did you mean blockingTimeoutSeconds\?/],
  ['wait', () => limiter().wait('a', { timeoutSeconds: 1 } as object), /no option "timeoutSeconds"/],
  [
    'a limit',
    () => new RateLimiter({ url, limits: { ...limits, window: 1 } as never }),
    /limits has no option "window"/,
  ],
  ['localShare', () => new RateLimiter({ url, limits, localShare: { unit: 1 } as never }), /did you mean units\?/],
  ['heartbeatThread', () => new DistributedLock({ url, heartbeatThread: { stalled: 1 } as never }), /stalledAfterSec/],
  [
    'rateLimitFetch',
    () => rateLimitFetch(() => new Response(), { limit: limiter() } as never),
    /did you mean limiter\?/,
  ],
  ['Fence', () => new Fence({ max: 1 } as object), /Fence|options has no option "max"/],
  ['memoryDriver', () => memoryDriver({ stor: 1 } as object), /did you mean store\?/],
  ['sqliteDriver', () => sqliteDriver({ db: 1 } as never), /did you mean database\?/],
  ['redisDriver', () => redisDriver({ redis: 1 } as never), /did you mean client\?/],
  ['redisDriver, keyPrefix', () => redisDriver({ client: 1, keyPrefix: '' } as never), /did you mean prefix\?/],
  ['redlockDriver', () => redlockDriver({ node: [] } as never), /did you mean nodes\?/],
  ['postgresDriver', () => postgresDriver({ pool: 1 } as never), /did you mean client\?/],
  ['postgresAdvisoryDriver', () => postgresAdvisoryDriver({ pool: 1 } as never), /did you mean client\?/],
  ['redisFence', () => redisFence({ redis: 1 } as never), /did you mean client\?/],
  ['postgresFence', () => postgresFence({} as never, 'a', 1, { shema: 'x' } as object), /did you mean schema\?/],
  ['lockInTransaction', () => lockInTransaction({} as never, 'a', { waits: true } as object), /did you mean blocking/],
  ['migratePostgres', () => migratePostgres({ client: 1, shema: '' } as never), /did you mean schema\?/],
  ['migrationScript', () => migrationScript('public', { olny: 'fence' } as object), /did you mean only\?/],
  ['inspect', () => memoryDriver().inspect({ lockname: 'a' } as object), /did you mean lockName\?/],
]

describe('an unknown option is rejected before anything is sent', () => {
  it.each(calls)('%s', async (_, call, message) => {
    const error = await rejectionOf(call)
    expect(error).toBeInstanceOf(InvalidArgumentError)
    expect((error as Error).message).toMatch(message)
  })

  it('the error does not contain its value, which may be a password', async () => {
    const error = await rejectionOf(() => new DistributedLock({ url, password: 's3cret' } as object))
    expect(JSON.stringify({ ...(error as Error), message: (error as Error).message })).not.toContain('s3cret')
  })

  it('an inherited property is ignored', async () => {
    const options = Object.assign(Object.create({ ttl: 5 }) as object, { timeoutSeconds: 1 })
    expect(await lock().acquire('inherited', options)).toMatchObject({ acquired: true })
  })

  it('a known option that is undefined counts as absent', async () => {
    const options = { timeoutSeconds: undefined, signal: undefined } as object
    expect(await lock().acquire('undefined', options)).toMatchObject({ acquired: true })
  })
})

describe('the nearest name', () => {
  const known = ['timeoutSeconds', 'blocking', 'blockingTimeoutSeconds', 'metadata', 'url', 'holderId']
  it.each([
    ['timeoutSecond', 'timeoutSeconds'],
    ['timeout', 'timeoutSeconds'],
    ['timeoutMs', 'timeoutSeconds'],
    ['TTL', 'timeoutSeconds'],
    ['ttlMs', 'timeoutSeconds'],
    ['blockingTimeout', 'blockingTimeoutSeconds'],
    ['bolcking', 'blocking'],
    ['meta', 'metadata'],
    ['uri', 'url'],
    ['URL', 'url'],
    ['owner', 'holderId'],
    ['nonsense', undefined],
    ['x', undefined],
    ['', undefined],
  ])('of %j is %s', (name, expected) => {
    expect(nearestName(name, known)).toBe(expected)
  })
})

const lock = (): DistributedLock => new DistributedLock({ url })
const election = (): LeaderElection => new LeaderElection({ url, name: 'leader' })
const limiter = (): RateLimiter => new RateLimiter({ url, limits })

function thrownBy(work: () => unknown): unknown {
  try {
    work()
  } catch (error) {
    return error
  }
  return undefined
}
