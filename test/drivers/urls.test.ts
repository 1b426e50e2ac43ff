import assert from 'node:assert/strict'
import { inspect } from 'node:util'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, it, vi } from 'vitest'
import { connect } from '../../src/connect.ts'
import { memoryName } from '../../src/drivers/memory/store.ts'
import { type PostgresTarget, pgConfig, postgresConfig, postgresUrl } from '../../src/drivers/postgres/url.ts'
import { type RedisTarget, redisUrl, redlockUrl } from '../../src/drivers/redis/url.ts'
import { sqlitePath, sqliteUrl } from '../../src/drivers/sqlite/url.ts'
import { InvalidArgumentError } from '../../src/index.ts'

/**
 * What every URL means, or why it is refused. Two URLs with one meaning lock in one place. A URL that is refused opens
 * nothing. No error shows the password, which is always s3cret or a part of it.
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
  ['REDIS://Host', 'host:6379 / 0 lock:'],
  ['RedisS://host', 'host:6379 tls / 0 lock:'],
  ['valkey://host:7000/2', 'host:7000 / 2 lock:'],
  ['valkeys://me:s3cret@host', 'host:6379 tls me:s3cret@ / 0 lock:'],
  ['VALKEY+CLUSTER://one,two', 'cluster one:6379,two:6379 / 0 lock:'],
  ['valkeys+cluster://one', 'cluster one:6379 tls / 0 lock:'],
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
  // Without the colon before the password, or without @host behind it.
  ['redis://s3cret@host', /url user name must be followed by a password: user:password@, or :password@, but is "…"/],
  ['redis://me:s3cret/0', /url port must be/],
  ['redis://me:123/s3cret', /url database must be a whole number from 0 to 65535, but is "…"/],
  ['redis://me:123?s3cret', /url parameter must be one of prefix, but is "…"/],
  ['redis://me:123?s3&s3', /url parameter … must be given only once/],
  ['redis://me:123#s3cret', /but is "redis:\/\/me"/],
  ['redis://me:s3?cret', /url port must be/],
  ['redis://me:99999123', /url port must be a whole number from 1 to 65535, but is "…"/],
  ['redis://me:s3cret@host:99999', /url port must be a whole number from 1 to 65535, but is "99999"/],
  ['redis://me:s3cret@host:port', /url port must be .* but is "…"/],
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
  ['redlock://a,b,c?tsl=1', /one of prefix, tls, longestTtlSeconds, persistent \(did you mean tls\?\), but is "tsl"/],
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
  ['sqlite:x.db?key=s3cret', /without parameters.* but is "sqlite:x.db\?…"/],
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
  ['memory:jobs?x=s3cret', /without \/\/ and parameters/],
  ['memory:jobs#x', /without \/\/ and parameters/],
  ['memory:100%', /percent-encoded/],
]

const postgresUrls: readonly Row[] = [
  ['postgres://host/app', 'host:5432 app'],
  ['postgresql://HOST:5432/app', 'host:5432 app'],
  ['postgres+advisory://host/app', 'host:5432 app'],
  ['postgresql+advisory://host:7000/app?', 'host:7000 app'],
  ['postgres://[::1]:7000/app', '::1:7000 app'],
  ['postgres://me@host/app', 'host:5432 app me:'],
  ['postgres://me:s3cret@host/app', 'host:5432 app me:s3cret'],
  ['postgres://m%40e:s3%2Fc%3Fr%25et@host/app', 'host:5432 app m@e:s3/c?r%et'],
  ['postgres://host/my%20app', 'host:5432 my app'],
  ['postgres://host/my app', 'host:5432 my app'],
  ['postgres://host/a%2Fb%25%5B%C3%BC%2B;,', 'host:5432 a/b%[ü+;,'],
  ['postgres://host/a%2520b', 'host:5432 a%20b'],
  ['postgres://me@%2Fvar%2Frun%2Fpg/app', '/var/run/pg:5432 app me:'],
  ['postgres://%2Fvar%2Frun%2Fpg:7000/app', '/var/run/pg:7000 app'],
  ['postgres:///app?host=/var/run/pg', '/var/run/pg:5432 app'],
  ['postgres://me@/app?host=%2Fvar%2Frun%2Fpg&port=7000', '/var/run/pg:7000 app me:'],
  ['postgres://host/app?holdfast_schema=locks', 'host:5432 app {"schema":"locks"}'],
  ['postgres://host/app?holdfast_schema=my%20locks', 'host:5432 app {"schema":"my locks"}'],
  ['postgres://host/app?holdfast_durability=relaxed', 'host:5432 app {"durability":"relaxed"}'],
  ['postgres://host/app?holdfast_migrate=false', 'host:5432 app {"migrate":false}'],
  ['postgres://host/app?holdfast_migrate=1', 'host:5432 app {"migrate":true}'],
  ['postgres://host/app?application_name=me&sslmode=disable', 'host:5432 app application_name=me&sslmode=disable'],
  ['postgres://host/app?options=-c%20lock_timeout%3D1s', 'host:5432 app options=-c%20lock_timeout%3D1s'],
]

const postgresRefused: readonly Refusal[] = [
  ['postgres:host/app', /url must be a URL such as postgres:\/\//],
  ['postgres://a,b/app', /url host must be one host: .* Pass a client of your own/],
  ['postgres://a:1,b:2/app', /one host/],
  ['postgres+advisory://a,b/app', /one host/],
  ['postgres:///app', /url host must be a host name/],
  ['postgres:///app?host=db', /url parameter host must be the folder of a Unix socket/],
  ['postgres://host/app?host=/var/run', /where the URL names no host/],
  ['postgres://host/app?port=7000', /url parameter host must be/],
  ['postgres://host', /url database must be named after the host, as in postgres:\/\/host\/database/],
  ['postgres://host/', /url database must be named/],
  ['postgres://host/a/b', /url database must be .*%2F/],
  ['postgres://host/app/', /url database must be/],
  ['postgres://host/a%3Fb', /without \? and #/],
  ['postgres://host/a%00b', /url database must be/],
  ['postgres://host:x/app', /url port must be/],
  ['postgres://host/app?holdfast_schema=a&holdfast_schema=b', /url parameter holdfast_schema must be given only once/],
  ['postgres://host/app?sslmode=disable&sslmode=require', /sslmode must be given only once/],
  ['postgres://host/app?holdfast_shema=a', /one of holdfast_schema, .* but is "holdfast_shema"/],
  ['postgres://host/app?holdfast_migrate=no', /url parameter holdfast_migrate must be true, false, 1 or 0/],
  ['postgres://host/app?holdfast_durability=on', /durability must be crash-safe or relaxed/],
  ['postgres://host/app?holdfast_schema=a+b', /without \+/],
  ['postgres+advisory://host/app?holdfast_schema=a', /left out: advisory locks have no tables/],
  ['postgres://host/app?dbnam=locks', /one that is known here or to pg: holdfast_schema, .* but is "dbnam"/],
  ['postgres://host/app?ssl_mode=require', /\(did you mean sslmode\?\), but is "ssl_mode"/],
  ['postgres://host/app?search_path=locks', /known here or to pg/],
  ['postgres://host/app?dbname=other', /known here or to pg/],
  ['postgres://host/app?database=other', /known here or to pg/],
  ['postgres://host/app?user=me&password=s3cret', /known here or to pg/],
  ['postgres://host/app?target_session_attrs=read-write', /known here or to pg/],
  ['postgres://host/app?sslmode=requier', /url parameter sslmode must be one of disable, prefer, require/],
  ['postgres://host/app?ssl=on', /url parameter ssl must be one of true, false, no-verify, for pg/],
  ['postgres://host/app?ssl=true&sslmode=require', /url parameter ssl must be left out where sslmode is given/],
  ['postgres://host/app?connect_timeout=soon', /url parameter connect_timeout must be a number of seconds/],
  ['postgres://me:s3/cret@host/app', /percent-encoded wherever/],
  ['postgres://me:s3#cret@host/app', /percent-encoded wherever/],
  ['postgres://me:s3c%ret@host/app', /url password must be percent-encoded/],
]

const otherRefused: readonly Refusal[] = [
  ['', /the URL of a store, beginning with/],
  ['redis', /the URL of a store/],
  ['postgre://host/app', /beginning with .* \(did you mean postgres:\?\), but is/],
  ['redis ://host', /the URL of a store/],
  [' redis://host', /the URL of a store/],
  ['mysql://me:s3cret@host', /but is "mysql:\/\/…@host"/],
  ['mysql://me:s3/c@r?et@host', /but is "mysql:\/\/…@host"/],
  ['mysql://host?password=s3cret', /but is "mysql:\/\/host"/],
  ['me:s3cret@host', /but is "me:…@host"/],
  ['s3cret@host:1', /but is "…@host:1"/],
  ['me:s3cret', /but is "me:…"/],
  ['s3cret', /but is "…"/],
  ['host=db password=s3cret', /but is "…"/],
  ['mysql://me:s3cret', /but is "mysql:\/\/…"/],
  ['mysql://me:s3#cret', /but is "mysql:\/\/…"/],
]

beforeAll(() => {
  // None of these variables may change what a URL means.
  for (const name of ['PGHOST', 'PGDATABASE', 'PGUSER', 'PGUSERNAME']) vi.stubEnv(name, 'elsewhere')
  vi.stubEnv('PGPORT', '1')
})

afterAll(() => {
  vi.unstubAllEnvs()
})

describe('failure 55: every part of a URL is understood or refused', () => {
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

  it.each(postgresUrls)('%s means %s', (url, meaning) => {
    const { target, options } = postgresUrl(url)
    const { host, port, database, user, password, parameters } = target
    const login = user === undefined ? '' : ` ${user}:${password ?? ''}`
    const rest = parameters.length > 0 ? ` ${parameters.map(({ raw }) => raw).join('&')}` : ''
    const ours = Object.keys(options).length > 0 ? ` ${JSON.stringify(options)}` : ''
    assert.equal(`${host}:${port} ${database}${login}${rest}${ours}`, meaning)

    // How the clients read it, in any environment.
    const { connectionParameters: pgs } = new pg.Client(pgConfig(target)) as unknown as { connectionParameters: Pgs }
    assert.deepEqual([pgs.host, pgs.port, pgs.database], [host, port, database])
    if (user !== undefined) assert.deepEqual([pgs.user, pgs.password || ''], [user, password ?? ''])
    const { url: sqlUrl, options: sqlOptions } = postgresConfig(target)
    const { options: sql } = postgres(sqlUrl, sqlOptions)
    if (host.startsWith('/')) assert.equal(sql.path, `${host}/.s.PGSQL.${port}`)
    else assert.deepEqual([sql.host, sql.port, sql.path], [[host], [port], false])
    assert.equal(sql.database, database)
    if (user !== undefined) assert.deepEqual([sql.user, sql.pass ?? ''], [user, password ?? ''])
  })

  it('a parameter that only one PostgreSQL client understands is refused with the other one', () => {
    const refused = (search: string, config: (target: PostgresTarget) => object): void => {
      const { target } = postgresUrl(`postgres://host/app?${search}`)
      assert.throws(() => config(target), { code: 'INVALID_ARGUMENT' }, search)
    }
    const taken = (search: string, config: (target: PostgresTarget) => object): void => {
      config(postgresUrl(`postgres://host/app?${search}`).target)
    }
    for (const search of ['sslrootcert=/a.pem', 'sslcert=/a.pem', 'ssl=no-verify', 'sslmode=verify-ca']) {
      refused(search, postgresConfig)
      taken(search, pgConfig)
    }
    for (const search of ['prepare=false', 'sslmode=allow']) {
      taken(search, postgresConfig)
      refused(search, pgConfig)
    }
  })

  it('what hosts and Prisma put into a PostgreSQL URL is accepted, and passed to no client', () => {
    for (const search of [
      'sslmode=require&channel_binding=require', // Neon
      'sslmode=require&supa=base-pooler.x', // Supabase, by way of Vercel
      'schema=shop&connection_limit=5&pool_timeout=10&pgbouncer=true', // Prisma
      'sslmode=require&keepalives_idle=60&gssencmode=disable', // libpq
    ]) {
      const { target } = postgresUrl(`postgres://me:secret@host/app?${search}`)
      const passed = new URL(pgConfig(target).connectionString).search
      assert.equal(passed, search.startsWith('sslmode') ? '?sslmode=verify-full' : '')
      postgresConfig(target)
    }
  })

  it('ssl=false switches TLS off, and ssl=true and every sslmode but disable switch it on', () => {
    const isEncrypted = (search: string): boolean[] => {
      const { target } = postgresUrl(`postgres://host/app?${search}`)
      const { connectionParameters } = new pg.Client(pgConfig(target)) as unknown as { connectionParameters: Pgs }
      const { url, options } = postgresConfig(target)
      return [connectionParameters.ssl, postgres(url, options).options.ssl].map(Boolean)
    }
    for (const search of ['ssl=false', 'sslmode=disable']) assert.deepEqual(isEncrypted(search), [false, false], search)
    for (const search of ['ssl=true', 'sslmode=require', 'sslmode=verify-full']) {
      assert.deepEqual(isEncrypted(search), [true, true], search)
    }
  })

  it('every sslmode that pg reads as verify-full is passed on as verify-full, for later versions', () => {
    const passed = (search: string): string =>
      new URL(pgConfig(postgresUrl(`postgres://host/app?${search}`).target).connectionString).search.slice(1)
    for (const mode of ['prefer', 'require', 'verify-ca']) {
      assert.equal(passed(`sslmode=${mode}`), 'sslmode=verify-full')
      assert.equal(passed(`uselibpqcompat=true&sslmode=${mode}`), `uselibpqcompat=true&sslmode=${mode}`)
    }
    for (const mode of ['disable', 'no-verify']) assert.equal(passed(`sslmode=${mode}`), `sslmode=${mode}`)
  })

  it('a SQLite database in memory is refused: it would exclude no other process', async () => {
    for (const url of ['sqlite::memory:', 'sqlite:%3Amemory:', 'sqlite:///:memory:']) {
      await assert.rejects(connect(url), { code: 'STORE_UNAVAILABLE', message: /excludes no other process/ })
    }
  })

  it.each([
    ...redisRefused,
    ...redlockRefused,
    ...sqliteRefused,
    ...memoryRefused,
    ...postgresRefused,
    ...otherRefused,
  ])('%j is refused: %s', async (url, rule) => {
    const error: unknown = await connect(url).then(
      async (driver) => driver.close(),
      (reason: unknown) => reason,
    )
    assert.ok(error instanceof InvalidArgumentError, `not refused: ${inspect(error)}`)
    assert.match(error.message, rule)
    // Everything that a caller may log, except for the lines of the stack.
    const shown = inspect({ ...error, message: error.message, cause: error.cause })
    assert.doesNotMatch(shown, /s3|cr&|et@|c@r|cret/)
  })
})

/** How pg reads what it is given. */
interface Pgs {
  readonly host: string
  readonly port: number
  readonly database: string
  readonly user: string
  readonly password: string | null
  readonly ssl: unknown
}

function textOf({ cluster, tls, username, password }: RedisTarget, hosts: RedisTarget['hosts'] | string): string {
  const list = typeof hosts === 'string' ? hosts : hosts.map(({ host, port }) => `${host}:${port}`).join()
  const login = password === undefined ? '' : ` ${username ?? ''}:${password}@`
  return `${cluster ? 'cluster ' : ''}${list}${tls ? ' tls' : ''}${login}`
}
