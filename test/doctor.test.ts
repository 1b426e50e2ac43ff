import { once } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import pg from 'pg'
import { describe, expect, inject, test } from 'vitest'
import { examine } from '../src/doctor/doctor.ts'
import { migratePostgresUrl } from '../src/drivers/postgres.ts'
import { DistributedLock } from '../src/index.ts'
import { makeFolder } from './harness/folders.ts'
import { startRedis } from './harness/servers.ts'
import { askRedis } from './harness/wire.ts'

const { redis, postgres = '', pgbouncer = '' } = inject('servers')
const codesOf = async (url: string) => (await examine(url)).map(({ code, severity }) => `${severity} ${code}`)
const DURABLE = { appendonly: 'yes' }

// At the same time: each of them waits much more than it computes.
describe.concurrent('doctor', { timeout: 120_000 }, () => {
  test('is silent about stores that are set up well', async ({ expect: expects }) => {
    await using server = await startRedis({ settings: DURABLE })
    const folder = makeFolder('doctor')
    for (const url of [server.url, `sqlite:${folder.path}/locks.db`]) {
      expects(await examine(url), 'without leases').toEqual([])
      await using lock = new DistributedLock({ url })
      await lock.hold('nightly', { heartbeat: true })
      expects(await examine(url), 'with a lease').toEqual([])
    }
    folder.remove()
  })

  test('a Redis that evicts, keeps nothing on disk and is almost full', async ({ expect: expects }) => {
    await using server = await startRedis({ settings: { 'maxmemory-policy': 'allkeys-lru' } })
    const used = Number(/used_memory:(\d+)/.exec(`${await askRedis(server, 'INFO', 'memory')}`)?.[1])
    await askRedis(server, 'CONFIG', 'SET', 'maxmemory', Math.round(used * 1.08))
    const found = await codesOf(server.url)
    expects(found).toContain('error REDIS_EVICTION')
    expects(found).toContain('warning REDIS_NO_PERSISTENCE')
    expects(found).toContain('warning REDIS_MEMORY')
  })

  test('a Redis that is a replica, and a master whose replicas do not have to confirm', async ({ expect: expects }) => {
    await using master = await startRedis({ settings: DURABLE })
    await using replica = await startRedis({ settings: { ...DURABLE, replicaof: `127.0.0.1 ${master.port}` } })
    await until(async () => `${await askRedis(master, 'INFO', 'replication')}`.includes('state=online'))
    expects(await codesOf(replica.url)).toEqual(['error REDIS_REPLICA'])
    expects(await codesOf(master.url)).toEqual(['warning REDIS_TOO_FEW_REPLICAS'])
    const nodes = [master, ...(redis ?? [])]
      .slice(0, 3)
      .map((each) => new URL(typeof each === 'string' ? each : each.url).host)
    const found = await examine(`redlock://${nodes}?persistent=true`)
    expects(found.filter(({ code }) => code === 'REDLOCK_REPLICAS').map(({ what }) => what)).toEqual([
      'Node 1 has 1 replica.',
    ])
  })

  test('a Redis that refuses writes for lack of replicas', async ({ expect: expects }) => {
    await using server = await startRedis({ settings: { ...DURABLE, 'min-replicas-to-write': '1' } })
    expects(await codesOf(server.url)).toContain('error REDIS_TOO_FEW_REPLICAS')
  })

  test('a Redis user without the rights, with the statement that gives them', async ({ expect: expects }) => {
    await using server = await startRedis({ settings: DURABLE })
    await askRedis(server, 'ACL', 'SETUSER', 'app', 'on', '>secret', '~lock:*', '+@all')
    const [finding] = await examine(server.url.replace('//', '//app:secret@'))
    expects(finding).toMatchObject({ code: 'NO_RIGHTS', severity: 'error' })
    expects(finding?.fix).toMatch(/^ACL SETUSER app ~lock:\* ~holdfast:\* &holdfast:\* /)
    const words = finding?.fix.split(' ') ?? []
    await askRedis(server, ...words)
    expects(await codesOf(server.url.replace('//', '//app:secret@'))).toEqual([])
  })

  test('a Redis user who may lock, but not list the locks', async ({ expect: expects }) => {
    await using server = await startRedis({ settings: DURABLE })
    await askRedis(server, 'ACL', 'SETUSER', 'app', 'on', '>secret', 'allkeys', 'allchannels', '+@all', '-scan')
    const [finding, ...others] = await examine(server.url.replace('//', '//app:secret@'))
    expects(finding).toMatchObject({ code: 'NO_INSPECTION', severity: 'warning' })
    expects(finding?.fix).toMatch(/^ACL SETUSER app .* \+@read /)
    expects(others).toEqual([])
  })

  test('a Redlock whose addresses lead to one server, and one with two nodes', async ({ expect: expects }) => {
    const [one = '', two = ''] = redis ?? []
    const host = (url: string) => new URL(url).host
    await using proxy = await forwardTo(Number(new URL(one).port))
    const found = await codesOf(`redlock://${host(one)},127.0.0.1:${proxy.port},${host(two)}?persistent=true`)
    expects(found).toContain('error REDLOCK_SAME_SERVER')
    expects(await codesOf(`redlock://${host(one)},${host(two)}?persistent=true`)).toContain('error REDLOCK_FEW_NODES')
  })

  test('a PostgreSQL without the tables', async ({ expect: expects }) => {
    expects(await codesOf(`${postgres}?holdfast_schema=not_there`)).toContain('error POSTGRES_SCHEMA')
  })

  test('a PostgreSQL role whose sessions and statements time out', async ({ expect: expects }) => {
    const url = await roleUrl('doctor_timeouts', [
      'ALTER ROLE doctor_timeouts SET statement_timeout = 5000',
      'ALTER ROLE doctor_timeouts SET idle_session_timeout = 60000',
    ])
    const found = await examine(url.replace('postgres:', 'postgres+advisory:'))
    const timeouts = found.filter(({ code }) => code === 'POSTGRES_TIMEOUT').map(({ what }) => what)
    expects(timeouts).toEqual(['idle_session_timeout is 1min.', 'statement_timeout is 5s.'])
    // The servers of the tests are faster without it.
    expects(found.map(({ code }) => code)).toContain('POSTGRES_NOT_DURABLE')
  })

  test('a PostgreSQL role that may lock, but not read the key of notifications', async ({ expect: expects }) => {
    const [schema, role] = ['doctor_keys', 'doctor_keyless']
    await migratePostgresUrl(postgres, { schema })
    const url = await roleUrl(role, [
      `ALTER ROLE ${role} NOSUPERUSER`,
      `GRANT USAGE ON SCHEMA ${schema} TO ${role}`,
      `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ${schema} TO ${role}`,
      `GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA ${schema} TO ${role}`,
      `REVOKE SELECT ON ALL SEQUENCES IN SCHEMA ${schema} FROM ${role}`,
    ])
    const found = await examine(`${url}?holdfast_schema=${schema}`)
    const wakeUps = found.find(({ code }) => code === 'NO_WAKE_UPS')
    expects(wakeUps?.fix).toBe(`GRANT SELECT ON ALL SEQUENCES IN SCHEMA ${schema} TO ${role};`)
    expects(wakeUps?.what).toContain('permission denied for the sequences')
  })

  test('a pooler in transaction mode before PostgreSQL', async ({ expect: expects }) => {
    expects(await codesOf(pgbouncer)).toContain('warning POSTGRES_POOLER')
  })

  test('a server that does not answer, without its password', async ({ expect: expects }) => {
    const [finding] = await examine('redis://me:hunter2@127.0.0.1:1')
    expects(finding).toMatchObject({ code: 'UNREACHABLE', severity: 'error' })
    expects(JSON.stringify(finding)).not.toContain('hunter2')
  })

  // The limit is below the time of two questions without an answer.
  test('a Redis that accepts connections and never answers', { timeout: 20_000 }, async ({ expect: expects }) => {
    const silent = createServer(() => {}).listen(0, '127.0.0.1')
    await once(silent, 'listening')
    const { port } = silent.address() as AddressInfo
    expects(await codesOf(`redis://127.0.0.1:${port}`)).toEqual(['error UNREACHABLE'])
    silent.close()
  })
})

/** The URL of a new role. */
async function roleUrl(role: string, statements: readonly string[]): Promise<string> {
  const client = new pg.Client({ connectionString: postgres })
  await client.connect()
  try {
    await client.query(`DROP ROLE IF EXISTS ${role}`)
    await client.query(`CREATE ROLE ${role} LOGIN SUPERUSER`)
    for (const statement of statements) await client.query(statement)
  } finally {
    await client.end()
  }
  const url = new URL(postgres)
  url.username = role
  return url.href
}

/** A second address of a server. */
async function forwardTo(port: number): Promise<AsyncDisposable & { port: number }> {
  const listener = createServer((socket) => {
    const target = connect(port, '127.0.0.1')
    socket.pipe(target).pipe(socket)
    for (const each of [socket, target]) each.on('error', () => socket.destroy() && target.destroy())
  })
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve))
  return {
    port: (listener.address() as AddressInfo).port,
    [Symbol.asyncDispose]: () => new Promise((resolve) => listener.close(() => resolve())),
  }
}

async function until(isDone: () => Promise<boolean>): Promise<void> {
  await expect.poll(isDone, { timeout: 30_000 }).toBe(true)
}
