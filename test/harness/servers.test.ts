import { existsSync, readFileSync, readlinkSync } from 'node:fs'
import { beforeAll, describe, expect, test } from 'vitest'
import { findBinaries } from './binaries.ts'
import { isAlive, until } from './processes.ts'
import { startPostgres, startRedis, startRedisSentinel, startServers } from './servers.ts'
import { startSharedServers } from './shared-servers.ts'
import { askPostgres, askRedis } from './wire.ts'

/** Other test files run at the same time. */
const SLOW = { timeout: 60_000 }

// In a hook, because installing servers on a new machine takes longer than the timeout of a test.
beforeAll(() => findBinaries(['redis-server', 'postgres', 'initdb', 'pgbouncer']), 300_000)

describe.concurrent('servers', SLOW, () => {
  test('five Redis, a Cluster, a Sentinel set, PostgreSQL and PgBouncer start together and answer', async () => {
    await using servers = await startServers({
      redis: 5,
      cluster: true,
      sentinel: true,
      postgres: true,
      pgbouncer: true,
    })

    expect(new Set(servers.redis.map((server) => server.port)).size).toBe(5)
    for (const server of servers.redis) expect(await askRedis(server, 'PING')).toBe('PONG')

    const written = await Promise.allSettled(
      servers.cluster.nodes.map((node) => askRedis(node, 'SET', 'name', 'value')),
    )
    expect(written.map((each) => each.status).sort()).toEqual(['fulfilled', 'rejected', 'rejected'])
    expect(written.map((each) => String(each.status === 'rejected' && each.reason)).join()).toContain('MOVED')

    const { master, replicas, sentinels } = servers.sentinel
    expect(await servers.sentinel.currentMasterPort()).toBe(master.port)
    expect(await askRedis(master, 'SET', 'name', 'value')).toBe('OK')
    for (const replica of replicas) expect(await askRedis(replica, 'ROLE')).toContain('connected')
    for (const sentinel of sentinels) expect(await askRedis(sentinel, 'PING')).toBe('PONG')

    expect(await askPostgres(servers.postgres, 'SELECT 1')).toEqual([['1']])
    expect(await askPostgres(servers.pgbouncer, 'SELECT 1')).toEqual([['1']])
    const pooler = await askPostgres({ port: servers.pgbouncer.port, database: 'pgbouncer' }, 'SHOW CONFIG')
    const settings = Object.fromEntries(pooler.map(([name, value]) => [name, value]))
    expect(settings).toMatchObject({ pool_mode: 'transaction', default_pool_size: '3' })
  })

  test('only the requested servers are started', async () => {
    await using servers = await startServers({ redis: 1 })
    expect(servers.redis).toHaveLength(1)
    expect(servers).toMatchObject({
      cluster: undefined,
      sentinel: undefined,
      postgres: undefined,
      pgbouncer: undefined,
    })
  })

  test('stopping ends every process and removes every folder', async () => {
    const servers = await startServers({ redis: 1, postgres: true })
    const pids = [...servers.redis, servers.postgres].map((server) => server.pid)
    const folders = pids.map((pid) => readlinkSync(`/proc/${pid}/cwd`))
    await servers.stop()
    expect(pids.filter(isAlive)).toEqual([])
    expect(folders.filter((folder) => existsSync(folder))).toEqual([])
  })

  test('a killed Redis refuses connections, and restarts empty on the same port', async () => {
    await using redis = await startRedis()
    await askRedis(redis, 'SET', 'name', 'value')
    const { pid, port } = redis
    await redis.kill()
    await expect(askRedis({ port }, 'PING')).rejects.toThrow('ECONNREFUSED')
    await redis.restart()
    expect(await askRedis({ port }, 'GET', 'name')).toBeNull()
    expect(redis.pid).not.toBe(pid)
  })

  test('a killed PostgreSQL restarts with all committed data', async () => {
    await using postgres = await startPostgres()
    await askPostgres(postgres, 'CREATE TABLE kept AS SELECT 42 AS answer')
    await postgres.kill()
    await expect(askPostgres({ port: postgres.port }, 'SELECT 1')).rejects.toThrow('ECONNREFUSED')
    await postgres.restart()
    expect(await askPostgres(postgres, 'SELECT answer FROM kept')).toEqual([['42']])
  })

  test('a killed PostgreSQL leaves no shared memory behind', async () => {
    const segments = () =>
      readFileSync('/proc/sysvipc/shm', 'utf8')
        .trim()
        .split('\n')
        .map((line) => line.trim().split(/\s+/)[1])
    const postgres = await startPostgres()
    const [row] = await askPostgres(postgres, "SELECT pg_read_file('postmaster.pid')")
    const segment = row?.[0]?.split('\n')[6]?.trim().split(/\s+/)[1]
    await postgres.kill()
    expect(segments()).toContain(segment)
    await postgres[Symbol.asyncDispose]()
    expect(segments()).not.toContain(segment)
  })

  test('a paused server and its backends do not answer until they are resumed', async () => {
    await using postgres = await startPostgres()
    const slow = askPostgres({ port: postgres.port, timeoutMs: 10_000 }, 'SELECT pg_sleep(1)')
    slow.catch(() => {})
    // After its backend has started, so that the backend does not answer.
    const busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"
    await until(async () => (await askPostgres(postgres, busy))[0]?.[0] === '1', {
      timeoutMs: 2_000,
      failure: () => busy,
    })
    await postgres.pause()
    await expect(askPostgres({ port: postgres.port, timeoutMs: 1_500 }, 'SELECT 1')).rejects.toThrow('no answer')
    await expect(Promise.race([slow, Promise.resolve('silent')])).resolves.toBe('silent')
    postgres.resume()
    await expect(slow).resolves.toHaveLength(1)
  })

  test('the Sentinels promote a replica when the master is killed', async () => {
    await using sentinel = await startRedisSentinel()
    await sentinel.master.kill()
    const isPromoted = async () => (await sentinel.currentMasterPort()) !== sentinel.master.port
    await until(isPromoted, { timeoutMs: 15_000, failure: () => 'no replica was promoted' })
    const port = await sentinel.currentMasterPort()
    expect(sentinel.replicas.map((replica) => replica.port)).toContain(port)
  })

  test('a server that does not start rejects with its output, and leaves nothing behind', async () => {
    await expect(startRedis({ settings: { nonsense: 'yes' } })).rejects.toThrow(/ended at once; it printed:.*nonsense/s)
  })
})

describe('shared servers', () => {
  test('a URL from the environment replaces a server', async () => {
    const { servers, stop } = await startSharedServers({
      HOLDFAST_TEST_SERVERS: 'redis,sentinel,postgres',
      HOLDFAST_TEST_REDIS_URL: 'redis://one.example:1, redis://two.example:2',
      HOLDFAST_TEST_REDIS_SENTINEL_URL: 'redis://three.example:3',
      HOLDFAST_TEST_POSTGRES_URL: 'postgres://four.example/db',
    })
    await stop()
    expect(servers).toEqual({
      redis: ['redis://one.example:1', 'redis://two.example:2'],
      sentinel: { urls: ['redis://three.example:3'], masterName: 'mymaster' },
      postgres: 'postgres://four.example/db',
    })
  })

  test('"none" starts nothing, and an unknown name is rejected', async () => {
    const { servers } = await startSharedServers({ HOLDFAST_TEST_SERVERS: 'none' })
    expect(servers).toEqual({})
    await expect(startSharedServers({ HOLDFAST_TEST_SERVERS: 'mongo' })).rejects.toThrow('names "mongo"')
  })
})
