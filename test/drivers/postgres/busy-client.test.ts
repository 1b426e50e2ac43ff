import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, inject, it, vi } from 'vitest'
import { migratePostgres, type PostgresClient, postgresDriver } from '../../../src/drivers/postgres.ts'
import { DistributedLock } from '../../../src/index.ts'
import { unique } from '../../harness/postgres-context.ts'

const url = inject('servers').postgres ?? ''
const schema = `busy_${randomBytes(6).toString('hex')}`
let pool: pg.Pool

beforeAll(async () => {
  pool = new pg.Pool({ connectionString: url, max: 2 })
  await migratePostgres({ client: pool, schema })
})
afterAll(async () => {
  await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
  await pool.end()
})

interface Busy {
  readonly client: PostgresClient
  /** Uses up every connection of the client until it is called again. */
  occupy(): Promise<() => Promise<unknown>>
  end(): Promise<void>
}

const clients: Record<string, () => Promise<Busy>> = {
  async 'a Pool of pg that is used up'() {
    const client = new pg.Pool({ connectionString: url, max: 2 })
    return { client, occupy: () => takeAll(client), end: () => client.end() }
  },
  async 'a Pool of pg with its settings apart'() {
    const { hostname: host, port, username: user, password, pathname } = new URL(url)
    const database = pathname.slice(1)
    const client = new pg.Pool({ host, port: Number(port), user, password: async () => password, database, max: 2 })
    return { client, occupy: () => takeAll(client), end: () => client.end() }
  },
  async 'a Client of pg in a transaction of the caller'() {
    const client = new pg.Client(url)
    await client.connect()
    const occupy = async () => {
      await client.query('BEGIN')
      return () => client.query('ROLLBACK')
    }
    return { client, occupy, end: () => client.end() }
  },
  async 'postgres with all its connections in use'() {
    const client = postgres(url, { max: 2, onnotice: () => {} })
    const occupy = async () => {
      const taken = await Promise.all([client.reserve(), client.reserve()])
      return async () => taken.map((each) => each.release())
    }
    return { client, occupy, end: () => client.end() }
  },
}

async function takeAll(client: pg.Pool): Promise<() => Promise<unknown>> {
  const taken = await Promise.all([client.connect(), client.connect()])
  return async () => taken.map((each) => each.release())
}

describe.concurrent.each(Object.entries(clients))('postgres: %s', (_, open) => {
  it('failure 77: leases are renewed and released all the same', async () => {
    const { client, occupy, end } = await open()
    const lock = new DistributedLock({ driver: postgresDriver({ client, schema }) })
    const name = unique('busy')
    const lease = await lock.hold(name, { timeoutSeconds: 1.5 })
    const free = await occupy()
    try {
      await new Promise<void>((resolve, reject) => {
        // Six renewals take twice as long as it would last without one.
        let left = 6
        lock.on('renewed', () => --left === 0 && resolve())
        lease.signal.addEventListener('abort', () => reject(new Error('the lease was lost')))
      })
      assert.equal(await lease.release(), true)
      const { rows } = await pool.query(`SELECT 1 FROM ${schema}.distributed_locks WHERE lock_name = $1`, [name])
      assert.deepEqual(rows, [])
    } finally {
      await free()
      await lock.close()
      await end()
    }
  })
})

describe('postgres: a Pool of pg with a free connection', () => {
  it('releases a lock that was held for a moment on it, and so needs no other connection', async () => {
    const application = `free_${randomBytes(6).toString('hex')}`
    const client = new pg.Pool({ connectionString: url, max: 2, application_name: application })
    const lock = new DistributedLock({ driver: postgresDriver({ client, schema }) })
    await lock.withLock(unique('free'), async () => {})
    // The end of `withLock` releases. Our own connections would have the settings of the pool.
    assert.equal(client.totalCount, 1)
    const { rows } = await pool.query('SELECT 1 FROM pg_stat_activity WHERE application_name = $1', [application])
    assert.equal(rows.length, 1)
    await lock.close()
    await client.end()
  })

  it('releases all the same when the application has left a transaction open on it', async () => {
    const client = new pg.Pool({ connectionString: url, max: 2 })
    const lock = new DistributedLock({ driver: postgresDriver({ client, schema }) })
    const lease = await lock.hold(unique('left-open'), { heartbeat: false })
    await client.query('BEGIN')
    assert.equal(await lease.release(), true)
    await client.query('ROLLBACK')
    await lock.close()
    await client.end()
  })
})

describe('postgres: a server without a free connection', () => {
  it('renews with the client that it was given, and a warning says so once', async () => {
    const role = `few_${randomBytes(6).toString('hex')}`
    await pool.query(`CREATE ROLE ${role} LOGIN CONNECTION LIMIT 2; GRANT ALL ON SCHEMA ${schema} TO ${role}`)
    await pool.query(`GRANT ALL ON ALL TABLES IN SCHEMA ${schema} TO ${role}`)
    await pool.query(`GRANT ALL ON ALL SEQUENCES IN SCHEMA ${schema} TO ${role}`)
    const address = new URL(url)
    address.username = role
    const client = new pg.Pool({ connectionString: address.href, max: 2 })
    const taken = await client.connect()
    await client.query('SELECT 1') // The second and last connection of this role.
    const warn = vi.spyOn(process, 'emitWarning').mockReturnValue()
    const lock = new DistributedLock({ driver: postgresDriver({ client, schema, migrate: false }) })
    const lease = await lock.hold(unique('few'), { heartbeat: false })
    for (let turn = 0; turn < 3; turn += 1) assert.equal(await lease.extend(30), true)
    await lease.release()
    const said = warn.mock.calls.map(([message]) => String(message))
    warn.mockRestore()
    assert.equal(said.length, 1, String(said))
    assert.match(said[0] as string, /could not open a connection beside the client .*\(too many connections for role/)
    taken.release()
    await lock.close()
    await client.end()
    await pool.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`)
  })
})
