import { spawn } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { findBinaries } from './harness/binaries.ts'
import { shiftedClock } from './harness/clock-shim.ts'
import { freePort } from './harness/ports.ts'
import { isAlive, until } from './harness/processes.ts'
import { type FaultProxy, startProxy } from './harness/proxy.ts'
import { type Server, startPostgres, startRedis, startRedisSentinel, startServers } from './harness/servers.ts'
import { startSharedServers } from './harness/shared-servers.ts'
import { askPostgres, askRedis } from './harness/wire.ts'
import { startWorker } from './harness/worker.ts'

/** Other test files run at the same time. */
const SLOW = { timeout: 60_000 }
const repository = fileURLToPath(new URL('..', import.meta.url))

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

describe('proxy', () => {
  let redis: Server
  let proxy: FaultProxy
  const ask = (...command: string[]) => askRedis({ port: proxy.port }, ...command)
  /** Long enough for an answer that must not come. */
  const askInVain = (...command: string[]) => askRedis({ port: proxy.port, timeoutMs: 200 }, ...command)

  beforeAll(async () => {
    redis = await startRedis()
  })
  afterAll(() => redis[Symbol.asyncDispose]())

  async function withProxy(work: () => Promise<void>): Promise<void> {
    proxy = await startProxy(redis.port)
    await askRedis(redis, 'FLUSHALL')
    await work().finally(() => proxy.close())
  }

  test('forwards bytes unchanged, and counts its connections', () =>
    withProxy(async () => {
      const value = 'é\r\n$5'.repeat(100_000)
      expect(await ask('SET', 'name', value)).toBe('OK')
      expect(await ask('GET', 'name')).toBe(value)
      const idle = connect(proxy.port, '127.0.0.1')
      await until(() => proxy.connections === 1, { timeoutMs: 10_000, failure: () => 'the connection is not counted' })
      idle.destroy()
      await until(() => proxy.connections === 0, { timeoutMs: 10_000, failure: () => 'the connection stays counted' })
    }))

  test.each(['toServer', 'toClient'] as const)('delays bytes %s, and no longer when the delay is 0', (direction) =>
    withProxy(async () => {
      proxy.delay(1_500, direction)
      expect(await durationMs(() => ask('PING'))).toBeGreaterThanOrEqual(1_499)
      proxy.delay(0, direction)
      expect(await durationMs(() => ask('PING'))).toBeLessThan(1_499)
    }),
  )

  test('delays both directions unless one is given', () =>
    withProxy(async () => {
      proxy.delay(70)
      expect(await durationMs(() => ask('PING'))).toBeGreaterThanOrEqual(139)
    }))

  test('a cut resets open connections, and a new one works', () =>
    withProxy(async () => {
      proxy.hold('toClient')
      const asked = ask('PING')
      asked.catch(() => {})
      await until(() => proxy.connections === 1, { timeoutMs: 10_000, failure: () => 'not connected' })
      proxy.cut()
      await expect(asked).rejects.toThrow('ECONNRESET')
      proxy.release('toClient')
      expect(await ask('PING')).toBe('PONG')
    }))

  test('a redirect sends new connections to another server, and keeps open ones', () =>
    withProxy(async () => {
      await using other = await startRedis()
      proxy.hold('toServer')
      const before = ask('INFO', 'server')
      await until(() => proxy.connections === 1, { timeoutMs: 10_000, failure: () => 'not connected' })
      proxy.redirect(other.port)
      proxy.release('toServer')
      expect(await before).toContain(`tcp_port:${redis.port}`)
      expect(await ask('INFO', 'server')).toContain(`tcp_port:${other.port}`)
    }))

  test('a black hole towards the client drops the reply, but not the request', () =>
    withProxy(async () => {
      proxy.blackHole('toClient')
      await expect(askInVain('SET', 'name', 'value')).rejects.toThrow('no answer')
      expect(await askRedis(redis, 'GET', 'name')).toBe('value')
    }))

  test('a black hole towards the server drops the request for good, and heals', () =>
    withProxy(async () => {
      proxy.blackHole('toServer')
      await expect(askInVain('SET', 'name', 'value')).rejects.toThrow('no answer')
      proxy.heal()
      expect(await ask('GET', 'name')).toBeNull()
    }))

  test('a connection that lost bytes in a black hole is reset when it heals', () =>
    withProxy(async () => {
      proxy.blackHole()
      const asked = ask('PING')
      setTimeout(() => proxy.heal(), 50)
      await expect(asked).rejects.toThrow('ECONNRESET')
    }))

  test('a request that is held back arrives on release, although its sender has gone', () =>
    withProxy(async () => {
      proxy.hold('toServer')
      await expect(askInVain('SET', 'name', 'late')).rejects.toThrow('no answer')
      expect(await askRedis(redis, 'GET', 'name')).toBeNull()
      proxy.release('toServer')
      const arrived = async () => (await askRedis(redis, 'GET', 'name')) === 'late'
      await until(arrived, { timeoutMs: 10_000, failure: () => 'the late write never arrived' })
    }))

  test('a reply that is held back arrives on release', () =>
    withProxy(async () => {
      proxy.hold('toClient')
      const asked = ask('INCR', 'count')
      const done = async () => (await askRedis(redis, 'GET', 'count')) === '1'
      await until(done, { timeoutMs: 10_000, failure: () => 'the request never arrived' })
      proxy.release('toClient')
      expect(await asked).toBe(1)
    }))

  test('cutAfterForwarding loses the reply of the chosen request, and keeps its effect', () =>
    withProxy(async () => {
      const cut = proxy.cutAfterForwarding('INCR')
      expect(await ask('PING')).toBe('PONG')
      await expect(ask('INCR', 'count')).rejects.toThrow('ECONNRESET')
      await cut
      expect(await ask('GET', 'count')).toBe('1')
      expect(await ask('INCR', 'count')).toBe(2)
    }))
})

describe.concurrent('clock shim', SLOW, () => {
  const TOLERANCE_MS = 5_000
  const HOUR_MS = 3_600_000

  test('shifts the clock of a running Redis forward and back, and keys expire by it', async () => {
    using clock = await shiftedClock()
    await using redis = await startRedis({ clock })
    const aheadMs = async () => {
      const [seconds, micros] = (await askRedis(redis, 'TIME')) as string[]
      return Number(seconds) * 1_000 + Number(micros) / 1_000 - Date.now()
    }
    expect(Math.abs(await aheadMs())).toBeLessThan(TOLERANCE_MS)
    await askRedis(redis, 'SET', 'short', 'value', 'PX', 60_000)
    await askRedis(redis, 'SET', 'long', 'value', 'PX', 3 * HOUR_MS)

    clock.shift(HOUR_MS)
    expect(Math.abs((await aheadMs()) - HOUR_MS)).toBeLessThan(TOLERANCE_MS)
    expect(await askRedis(redis, 'GET', 'short')).toBeNull()
    expect(await askRedis(redis, 'GET', 'long')).toBe('value')

    clock.shift(-HOUR_MS)
    expect(Math.abs((await aheadMs()) + HOUR_MS)).toBeLessThan(TOLERANCE_MS)
    expect(await askRedis(redis, 'PTTL', 'long')).toBeGreaterThan(3 * HOUR_MS)
    expect(await askRedis(redis, 'EVAL', "return redis.call('TIME')[1]", 0)).toMatch(/^\d+$/)

    clock.shift(0)
    expect(Math.abs(await aheadMs())).toBeLessThan(TOLERANCE_MS)
  })

  test('shifts the clock of a running PostgreSQL forward and back', async () => {
    using clock = await shiftedClock()
    await using postgres = await startPostgres({ clock })
    const aheadMs = async () => {
      const [row] = await askPostgres(postgres, 'SELECT extract(epoch FROM clock_timestamp()) * 1000')
      return Number(row?.[0]) - Date.now()
    }
    for (const offsetMs of [0, HOUR_MS, -HOUR_MS, 0]) {
      clock.shift(offsetMs)
      expect(Math.abs((await aheadMs()) - offsetMs)).toBeLessThan(TOLERANCE_MS)
    }
  })

  test('shifts the clock of a worker process', async () => {
    using clock = await shiftedClock()
    await using worker = await startWorker({ source: 'expose({ now: () => Date.now() })' }, { env: clock.env })
    clock.shift(-HOUR_MS)
    expect(Math.abs(Number(await worker.call('now')) - Date.now() + HOUR_MS)).toBeLessThan(TOLERANCE_MS)
  })
})

describe('free ports', () => {
  test('a reserved port is not given to another process', async () => {
    // A second copy of the module knows nothing of the first, like another process.
    const copy = `${new URL('./harness/ports.ts', import.meta.url).href}?copy`
    const other: typeof import('./harness/ports.ts') = await import(/* @vite-ignore */ copy)
    const handedOut = await Promise.all(Array.from({ length: 600 }, (_, at) => (at % 2 ? freePort : other.freePort)()))
    expect(new Set(handedOut).size).toBe(600)
  })
})

describe.concurrent('worker processes', () => {
  test('a worker answers calls of the functions that its source exposes, and can import', async () => {
    await using worker = await startWorker({
      source: `import { basename } from 'node:path'
        expose({ name: async (path) => ({ name: basename(path), pid: process.pid }) })
        console.log('to stdout'); console.error('to stderr')`,
    })
    expect(await worker.call('name', '/a/b')).toEqual({ name: 'b', pid: worker.pid })
    await until(() => worker.stdout === 'to stdout\n' && worker.stderr === 'to stderr\n', {
      timeoutMs: 10_000,
      failure: () => `captured ${worker.stdout} and ${worker.stderr}`,
    })
  })

  test('a worker answers calls of the functions that its module exports', async () => {
    await using worker = await startWorker({ module: join(repository, 'test/harness/fixtures/counter.mjs') })
    await worker.call('add', 2)
    expect(await worker.call('add', 3)).toBe(5)
  })

  test('a call rejects with the name, message and code of the worker’s error', async () => {
    await using worker = await startWorker({
      source: `expose({ fail() { throw Object.assign(new RangeError('too far'), { code: 'FAR' }) } })`,
    })
    await expect(worker.call('fail')).rejects.toMatchObject({ name: 'RangeError', message: 'too far', code: 'FAR' })
    await expect(worker.call('missing')).rejects.toThrow('exposes no function missing')
  })

  test('source that does not load rejects with the output of Node', async () => {
    await expect(startWorker({ source: `import 'no-such-module'` })).rejects.toThrow(/no-such-module/)
  })

  test('a killed worker rejects the call that is in flight', async () => {
    await using worker = await startWorker({ source: 'expose({ hang: () => new Promise(() => {}) })' })
    const hanging = worker.call('hang')
    hanging.catch(() => {})
    await worker.kill()
    await expect(hanging).rejects.toThrow('SIGKILL')
    expect(await worker.exited).toEqual({ code: null, signal: 'SIGKILL' })
  })

  test('a paused worker does not answer until it is resumed', async () => {
    await using worker = await startWorker({ source: 'expose({ ping: () => 1 })' })
    await worker.pause()
    let isAnswered = false
    const asked = worker.call('ping').finally(() => {
      isAnswered = true
    })
    await new Promise((resolve) => setTimeout(resolve, 100)) // A running worker answers within a few milliseconds.
    expect(isAnswered).toBe(false)
    worker.resume()
    expect(await asked).toBe(1)
  })
})

describe.concurrent('a test run that is interrupted', { timeout: 120_000 }, () => {
  test.each(['SIGKILL', 'SIGTERM', 'SIGINT'] as const)(
    'by %s leaves no server, worker or folder behind',
    async (signal) => {
      const folder = mkdtempSync(join(tmpdir(), 'holdfast-interrupted-'))
      chmodSync(folder, 0o755)
      const up = join(folder, 'up')
      const config = join(repository, 'test/harness/fixtures/interrupted-run.config.ts')
      const runner = spawn(process.execPath, ['node_modules/vitest/vitest.mjs', 'run', '--config', config], {
        cwd: repository,
        env: {
          ...withoutVitest(process.env),
          TMPDIR: folder,
          HOLDFAST_TEST_SERVERS: 'redis,postgres,pgbouncer',
          HOLDFAST_FIXTURE_UP: up,
        },
        stdio: ['ignore', 'pipe', 'pipe'],
      })
      let output = ''
      for (const stream of [runner.stdout, runner.stderr])
        stream.on('data', (text) => {
          output += text
        })
      try {
        await until(() => existsSync(up), { timeoutMs: 80_000, failure: () => `the run did not get up:\n${output}` })
        const names = processesOf(folder).map(({ name }) => name)
        expect(names.filter((name) => name === 'redis-server')).toHaveLength(6)
        expect(names).toEqual(expect.arrayContaining(['node', 'postgres', 'pgbouncer']))

        runner.kill(signal)
        const left = () => processesOf(folder).map(({ pid, name }) => `${pid} ${name}`)
        await until(() => left().length === 0, {
          timeoutMs: 15_000,
          failure: () => `left behind: ${left()}\n${output}`,
        })
      } finally {
        for (const { pid } of processesOf(folder)) process.kill(pid, 'SIGKILL')
        rmSync(folder, { recursive: true, force: true })
      }
    },
  )
})

/** Processes in the folder, or with it as TMPDIR. A server that sets its title overwrites its environment. */
function processesOf(folder: string): { pid: number; name: string }[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        const isInFolder = readlinkSync(`/proc/${pid}/cwd`).startsWith(folder)
        if (!isInFolder && !readFileSync(`/proc/${pid}/environ`, 'utf8').includes(`TMPDIR=${folder}`)) return []
        return [{ pid: Number(pid), name: readFileSync(`/proc/${pid}/comm`, 'utf8').trim() }]
      } catch {
        return [] // The process has ended meanwhile.
      }
    })
}

/** With these variables, the inner runner would take itself for a worker of the outer one. */
function withoutVitest(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(environment).filter(([name]) => !name.startsWith('VITEST')))
}

async function durationMs(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now()
  await work()
  return performance.now() - start
}
