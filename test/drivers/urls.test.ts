import assert from 'node:assert/strict'
import { inspect } from 'node:util'
import { describe, it } from 'vitest'
import { connect } from '../../src/connect.ts'
import { memoryName } from '../../src/drivers/support/memory-url.ts'
import { type RedisTarget, redisUrl, redlockUrl } from '../../src/drivers/support/redis-url.ts'
import { sqlitePath, sqliteUrl } from '../../src/drivers/support/sqlite-url.ts'
import { InvalidArgumentError } from '../../src/index.ts'

/**
 * What every URL means, or why it is refused. Two URLs with one meaning lock in one place; a URL that is refused opens
 * nothing, and no error shows the password, which is s3cret or a part of it wherever one is.
 */
type Row = readonly [url: string, meaning: string]
type Refusal = readonly [url: string, rule: RegExp]

const redis: readonly Row[] = [
  ['redis://host', 'host:6379 / 0 lock:'],
  ['redis://host/', 'host:6379 / 0 lock:'],
  ['redis://HOST:6379/0', 'host:6379 / 0 lock:'],
  ['redis://host?', 'host:6379 / 0 lock:'],
  ['redis://host:7000/3', 'host:7000 / 3 lock:'],
  ['redis://host/65535', 'host:6379 / 65535 lock:'],
  ['redis://127.0.0.1:7000', '127.0.0.1:7000 / 0 lock:'],
  ['redis://127.1:7000', '127.0.0.1:7000 / 0 lock:'],
  ['redis://[::1]:7000/2', '::1:7000 / 2 lock:'],
  ['redis://[0:0:0:0:0:0:0:1]', '::1:6379 / 0 lock:'],
  ['redis://my_host-1.example', 'my_host-1.example:6379 / 0 lock:'],
  ['rediss://host', 'host:6379 tls / 0 lock:'],
  ['redis://:s3cret@host', 'host:6379 :s3cret@ / 0 lock:'],
  ['redis://me:s3cret@host/1', 'host:6379 me:s3cret@ / 1 lock:'],
  ['redis://m%40e:s3%2Fc%3Fr%25et@host', 'host:6379 m@e:s3/c?r%et@ / 0 lock:'],
  ['redis://me:s3%252Fcret@host', 'host:6379 me:s3%2Fcret@ / 0 lock:'],
  ['redis://me:s3:c@ret@host', 'host:6379 me:s3:c@ret@ / 0 lock:'],
  ['redis://host?prefix=', 'host:6379 / 0 '],
  ['redis://host/?prefix=app%3A', 'host:6379 / 0 app:'],
  ['redis://host?prefix=app:', 'host:6379 / 0 app:'],
  ['redis://host?prefix=a%252Fb', 'host:6379 / 0 a%2Fb'],
  ['redis://host?prefix=a%20b=c', 'host:6379 / 0 a b=c'],
  ['redis+cluster://one:1,two', 'cluster one:1,two:6379 / 0 lock:'],
  ['redis+cluster://[::1]:7000,[::2]/0', 'cluster ::1:7000,::2:6379 / 0 lock:'],
  ['rediss+cluster://me:s3cret@one:1,two:2?prefix=', 'cluster one:1,two:2 tls me:s3cret@ / 0 '],
]

const redisRefused: readonly Refusal[] = [
  ['redis:host', /url must be a URL such as redis:\/\/host/],
  ['redis:/host', /a URL such as/],
  ['redis://', /url host must be a host name/],
  ['redis:///3', /url host must be/],
  ['redis://:6379', /url host must be/],
  ['redis://a,b', /url host must be one host; several are a redis\+cluster:\/\/ or a redlock:\/\/ URL/],
  ['redis://a:1,b:2/0', /one host/],
  ['rediss://a,b', /one host/],
  ['redis+cluster://a,,b', /url host must be/],
  ['redis://::1', /IPv6 in brackets/],
  ['redis://[::1', /IPv6 in brackets/],
  ['redis://[zz]', /IPv6 in brackets/],
  ['redis://ho%73t', /url host must be/],
  ['redis://ho st', /url host must be/],
  ['redis://host:0', /url port must be a whole number from 1 to 65535/],
  ['redis://host:65536', /url port/],
  ['redis://host:', /url port/],
  ['redis://host:6379x', /url port/],
  ['redis://me:s3cret', /url port must be a whole number/],
  ['redis://host/abc', /url database must be a whole number from 0 to 65535, but is "abc"/],
  ['redis://host/-1', /url database/],
  ['redis://host/1.5', /url database/],
  ['redis://host/0x1', /url database/],
  ['redis://host/03', /url database/],
  ['redis://host/65536', /url database/],
  ['redis://host/3/', /url database/],
  ['redis://host/%33', /url database/],
  ['redis://host//3', /url database/],
  ['redis+cluster://host/1', /url database must be 0 on a Cluster/],
  ['redis://host?db=3', /url parameter must be one of prefix, but is "db"/],
  ['redis://host?PREFIX=a', /url parameter must be one of prefix/],
  ['redis://host?keyPrefix=a', /one of prefix/],
  ['redis://host?tls=true', /one of prefix/],
  ['redis://host?prefix=a&prefix=b', /url parameter prefix must be given only once/],
  ['redis://host?prefix=a&pre%66ix=a', /given only once/],
  ['redis://host?prefix=a&', /url parameter must be one of prefix, but is ""/],
  ['redis://host?prefix=a+b', /url parameter prefix must be without \+: write %2B or %20/],
  ['redis://host?prefix=%zz', /url parameter prefix must be percent-encoded UTF-8/],
  ['redis://host?prefix=%ff', /percent-encoded UTF-8/],
  ['redis://host?prefix=%00', /prefix must be a string without NUL/],
  ['redis://host?prefix=holdfast:', /does not begin with "holdfast:"/],
  ['redis://host#0', /percent-encoded wherever/],
  ['redis://me:s3c%ret@host', /url password must be percent-encoded UTF-8/],
  ['redis://me:s3/cret@host', /percent-encoded wherever a user name, password, path or parameter contains/],
  ['redis://me:s3?cr&et@host/0', /percent-encoded wherever/],
  ['redis://me:s3#cret@host', /percent-encoded wherever/],
  ['redis://me@host', /url user name must be followed by a password/],
  ['redis://me:@host', /followed by a password/],
  ['redis://host\n', /without control characters/],
  ['redis://me:s3cret@ho\tst', /without control characters/],
  ['redis://host?prefix=\ud800', /lone surrogates/],
]

const redlock: readonly Row[] = [
  ['redlock://one', 'one:6379 / 0 lock:'],
  ['redlock://one,two:7000,[::2]:7001', 'one:6379 two:7000 ::2:7001 / 0 lock:'],
  ['redlock://localhost:1,localhost:2,127.0.0.1:3', 'localhost:1 localhost:2 127.0.0.1:3 / 0 lock:'],
  ['redlock://me:s3cret@one,two,three/3?prefix=', 'one:6379 two:6379 three:6379 me:s3cret@ / 3 '],
  ['redlock://a,b,c?tls=1', 'a:6379 b:6379 c:6379 tls / 0 lock:'],
  ['redlock://a,b,c?tls=true&persistent=true', 'a:6379 b:6379 c:6379 tls / 0 lock: persistent'],
  ['redlock://a,b,c?tls=0&persistent=false', 'a:6379 b:6379 c:6379 / 0 lock:'],
  ['redlock://a,b,c?longestTtlSeconds=2.5', 'a:6379 b:6379 c:6379 / 0 lock: 2.5 s'],
]

const redlockRefused: readonly Refusal[] = [
  ['redlock://a,a,a', /url host must be another server for each node.*"a:6379, twice"/],
  ['redlock://one,two,ONE:6379', /another server for each node/],
  ['redlock://one,two,one.', /another server/],
  ['redlock://localhost,127.0.0.1,three', /another server/],
  ['redlock://[::1]:1,localhost:1', /another server/],
  ['redlock://[::ffff:10.0.0.1],10.0.0.1', /another server/],
  ['redlock://[2001:db8::1],[2001:DB8:0::1]', /another server/],
  ['redlock://10.1,10.0.0.1', /another server/],
  ['redlock://', /url host must be/],
  ['redlock://a,b,', /url host must be/],
  ['redlock://a,b,c?tls=yes', /url parameter tls must be true, false, 1 or 0, but is "yes"/],
  ['redlock://a,b,c?tls', /url parameter tls must be/],
  ['redlock://a,b,c?tls=TRUE', /url parameter tls must be/],
  ['redlock://a,b,c?tsl=1', /one of prefix, tls, longestTtlSeconds, persistent, but is "tsl"/],
  ['redlock://a,b,c?persistent=on', /url parameter persistent must be/],
  ['redlock://a,b,c?tls=1&tls=0', /given only once/],
  ['redlock://a,b,c?longestTtlSeconds=1e3', /url parameter longestTtlSeconds must be a number of seconds/],
  ['redlock://a,b,c?longestTtlSeconds=', /a number of seconds from 0.001 to 1000000000/],
  ['redlock://a,b,c?longestTtlSeconds=0', /a number of seconds/],
  ['redlock://a,b,c/x', /url database/],
]

const sqlite: readonly Row[] = [
  ['sqlite:', 'the file in the state folder'],
  ['sqlite:locks.db', 'locks.db'],
  ['sqlite:./a/locks.db', './a/locks.db'],
  ['sqlite:../locks.db', '../locks.db'],
  ['sqlite:/var/lib/locks.db', '/var/lib/locks.db'],
  ['sqlite:///var/lib/locks.db', '/var/lib/locks.db'],
  ['sqlite:/my folder/locks.db', '/my folder/locks.db'],
  ['sqlite:/my%20folder/locks.db', '/my folder/locks.db'],
  ['sqlite:///my%20folder/locks.db', '/my folder/locks.db'],
  ['sqlite:/a%2520b', '/a%20b'],
  ['sqlite:/a%3Fb%23c', '/a?b#c'],
  ['sqlite:/m%C3%BCll', '/müll'],
  ['sqlite:/müll', '/müll'],
  ['sqlite:/a@b+c=d&e', '/a@b+c=d&e'],
  ['sqlite:C:\\locks.db', 'C:\\locks.db'],
]

const sqliteRefused: readonly Refusal[] = [
  ['sqlite://x.db', /sqlite:x\.db for a path in the working folder, or sqlite:\/\/\/x\.db for one from the root/],
  ['sqlite://localhost/x.db', /sqlite:localhost\/x\.db for a path/],
  ['sqlite://', /for a path in the working folder/],
  ['sqlite:///', /the path of a file/],
  ['sqlite:folder/', /the path of a file/],
  ['sqlite:file:x.db', /no file: URL/],
  ['sqlite:file:///x.db', /no file: URL/],
  ['sqlite:FILE:x.db', /no file: URL/],
  ['sqlite:x.db?cache=shared', /without parameters: in a file name, \? is written %3F/],
  ['sqlite:x.db?', /without parameters/],
  ['sqlite:?mode=ro', /without parameters/],
  ['sqlite:x.db#1', /# is written %23/],
  ['sqlite:100%.db', /url path must be percent-encoded UTF-8: a percent sign itself is written %25/],
  ['sqlite:a%00b', /without NUL/],
  ['sqlite:x.db\n', /without control characters/],
]

const memory: readonly Row[] = [
  ['memory:', ''],
  ['memory:jobs', 'jobs'],
  ['memory:my%20jobs', 'my jobs'],
  ['memory:my jobs', 'my jobs'],
  ['memory:a:b/c', 'a:b/c'],
]

const memoryRefused: readonly Refusal[] = [
  ['memory://jobs', /memory: or memory:name/],
  ['memory:jobs?x=1', /without \/\/ and parameters/],
  ['memory:jobs#x', /without \/\/ and parameters/],
  ['memory:100%', /percent-encoded/],
]

const otherRefused: readonly Refusal[] = [
  ['', /a store's URL, beginning with/],
  ['REDIS://host', /a store's URL/],
  [' redis://host', /a store's URL/],
  ['mysql://me:s3cret@host', /but is "mysql:\/\/…@host"/],
  ['mysql://me:s3/c@r?et@host', /but is "mysql:\/\/…@host"/],
  ['mysql://host?password=s3cret', /but is "mysql:\/\/host"/],
  ['me:s3cret@host', /but is "me:…@host"/],
  ['s3cret@host:1', /but is "…@host:1"/],
]

describe('URLs', () => {
  it.each(redis)('%s means %s', (url, meaning) => {
    const { target, prefix } = redisUrl(url)
    assert.equal(`${textOf(target, target.hosts)} / ${target.database} ${prefix}`, meaning)
  })

  it.each(redlock)('%s means %s', (url, meaning) => {
    const { targets, prefix, persistent, longestTtlSeconds } = redlockUrl(url)
    const [first] = targets as [RedisTarget]
    const hosts = targets.map((each) => each.hosts.map(({ host, port }) => `${host}:${port}`).join()).join(' ')
    const options = `${persistent ? ' persistent' : ''}${longestTtlSeconds ? ` ${longestTtlSeconds} s` : ''}`
    assert.equal(`${textOf(first, hosts)} / ${first.database} ${prefix}${options}`, meaning)
    for (const target of targets) assert.deepEqual({ ...target, hosts: [] }, { ...first, hosts: [] })
  })

  it.each(sqlite)('%s means %s', (url, meaning) => {
    assert.equal(sqlitePath(url, 'linux') ?? 'the file in the state folder', meaning)
  })

  it('a path on Windows may follow three slashes', () => {
    assert.equal(sqlitePath('sqlite:///C:/locks.db', 'win32'), 'C:/locks.db')
    assert.equal(sqlitePath('sqlite:/C:/locks.db', 'win32'), 'C:/locks.db')
    assert.equal(sqlitePath('sqlite:/C:/locks.db', 'linux'), '/C:/locks.db')
  })

  it.each(['/a b', '/100%', '/a%20b', '/a?b#c', '/müll', '/a\nb', '/a@b'])('the path %j has a URL', (path) => {
    assert.equal(sqlitePath(sqliteUrl(path)), path)
  })

  it.each(memory)('%s means %s', (url, meaning) => {
    assert.equal(memoryName(url), meaning)
  })

  it('a SQLite database in memory is refused: it would exclude nobody', async () => {
    for (const url of ['sqlite::memory:', 'sqlite:%3Amemory:', 'sqlite:///:memory:']) {
      await assert.rejects(connect(url), { code: 'STORE_UNAVAILABLE', message: /excludes nobody/ })
    }
  })

  it.each([...redisRefused, ...redlockRefused, ...sqliteRefused, ...memoryRefused, ...otherRefused])(
    '%j is refused: %s',
    async (url, rule) => {
      const error: unknown = await connect(url).then(
        async (driver) => driver.close(),
        (reason: unknown) => reason,
      )
      assert.ok(error instanceof InvalidArgumentError, `not refused: ${inspect(error)}`)
      assert.match(error.message, rule)
      // Everything that somebody may log, except for the stack's lines.
      const shown = inspect({ ...error, message: error.message, cause: error.cause })
      assert.doesNotMatch(shown, /s3|cr&|et@|c@r|cret/)
    },
  )
})

function textOf({ cluster, tls, username, password }: RedisTarget, hosts: RedisTarget['hosts'] | string): string {
  const list = typeof hosts === 'string' ? hosts : hosts.map(({ host, port }) => `${host}:${port}`).join()
  const login = password === undefined ? '' : ` ${username ?? ''}:${password}@`
  return `${cluster ? 'cluster ' : ''}${list}${tls ? ' tls' : ''}${login}`
}
