import assert from 'node:assert/strict'
import pg from 'pg'
import postgres from 'postgres'
import { describe, inject, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { type PostgresClient, postgresDriver } from '../../../src/drivers/postgres.ts'
import { lockInTransaction, postgresAdvisoryDriver } from '../../../src/drivers/postgres-advisory.ts'
import { DistributedLock, RateLimiter } from '../../../src/index.ts'
import { unique, until } from '../../harness/postgres-context.ts'

const url = inject('servers').postgres ?? ''

/** An application may have its clients rename columns and convert values. Nothing of that is about our statements. */
const upper = (text: string): string => text.toUpperCase()
const odd = (value: string | Buffer): object => ({ odd: String(value) })
const sql = (options: object) => () => postgres(url, { max: 3, onnotice: () => {}, ...options })
const pool = (options: object) => () => new pg.Pool({ connectionString: url, max: 3, ...options })
const everyType = { getTypeParser: () => odd }

const clients: Record<string, () => PostgresClient & { end(): Promise<unknown> }> = {
  'postgres with camel': sql({ transform: postgres.camel }),
  'postgres with pascal and undefined': sql({ transform: { ...postgres.pascal, undefined: null } }),
  'postgres with fromKebab': sql({ transform: postgres.fromKebab }),
  'postgres with transforms of its own': sql({
    transform: { column: { from: upper, to: upper }, value: { from: odd }, row: { from: (row: object) => [row] } },
  }),
  'postgres with types of its own': sql({
    types: {
      text: { to: 25, from: [25, 1043], serialize: String, parse: odd },
      boolean: { to: 16, from: [16], serialize: String, parse: odd },
      bigint: postgres.BigInt,
    },
  }),
  'postgres without types and preparation': sql({ fetch_types: false, prepare: false }),
  'postgres with one connection and camel': sql({ max: 1, transform: postgres.camel }),
  'pg with odd settings of its role': pool({
    options: '-c array_nulls=off -c standard_conforming_strings=off -c extra_float_digits=0 -c datestyle=german',
  }),
  'pg with types of its own': pool({ types: everyType }),
  'pg in binary': pool({ binary: true }),
  'pg in binary with types of its own': pool({ binary: true, types: everyType }),
}

const drivers: Record<string, (client: PostgresClient) => Driver> = {
  postgres: (client) => postgresDriver({ client }),
  'postgres-advisory': (client) => postgresAdvisoryDriver({ client }),
}

describe.concurrent.each(Object.entries(drivers))('%s', (kind, openDriver) => {
  it.each(Object.entries(clients))(
    'does not depend on how the client converts rows: %s',
    { timeout: 30_000 },
    (_, open) => works(openDriver, open, kind),
  )

  it('does not depend on how a Client of pg converts rows', async () => {
    const client = new pg.Client({ connectionString: url, types: everyType, binary: true } as pg.ClientConfig)
    await client.connect()
    const driver = openDriver(client)
    const lock = new DistributedLock({ driver })
    const name = unique('client')
    const lease = await lock.hold(name)
    assert.equal(await lease.extend(30), true)
    assert.equal((await lock.acquire(name)).acquired, false)
    assert.equal(await lease.release(), true)
    await lock.close()
    await driver.close()
    await client.end()
  })
})

async function works(
  openDriver: (client: PostgresClient) => Driver,
  open: () => PostgresClient & { end(): Promise<unknown> },
  kind: string,
): Promise<void> {
  const [client, rivals] = [open(), new pg.Pool({ connectionString: url, max: 3 })]
  const [driver, other] = [openDriver(client), openDriver(rivals)]
  const [lock, rival] = [new DistributedLock({ driver }), new DistributedLock({ driver: other })]
  const name = unique('changed')
  const metadata = driver.capabilities.metadata ? { snake_case: { 'kebab-case': [1, 'two', null] }, __proto: true } : {}
  const lease = await lock.hold(name, { metadata })
  assert.equal(await lease.extend(30), true)
  const refused = await lock.acquire(name)
  assert.ok(!refused.acquired && refused.holder?.holderId === lease.holderId)
  const [shown] = (await lock.inspect(name)).leases
  assert.deepEqual([shown?.fencingToken, shown?.acquiredAt], [lease.fencingToken, lease.acquiredAt])
  if (driver.capabilities.metadata) assert.deepEqual(shown?.metadata, metadata)
  // A waiter on each side.
  const next = rival.hold(name, { blockingTimeoutSeconds: 20 })
  await until('it to wait', async () => (await lock.inspect(name)).waiters.length === 1)
  assert.equal(await lease.release(), true)
  const theirs = await next
  assert.ok(theirs.fencingToken > lease.fencingToken)
  const back = lock.hold(name, { blockingTimeoutSeconds: 20 })
  await until('it to wait', async () => (await rival.inspect(name)).waiters.length === 1)
  await theirs.release()
  await (await back).release()
  await lock.withLocks([`${name}:a`, `${name}:b`], async () => {})
  if (driver.capabilities.rate) {
    const limiter = new RateLimiter({ driver, limits: { limit: 1, periodSeconds: 60 } })
    assert.deepEqual([(await limiter.consume(name)).allowed, (await limiter.consume(name)).allowed], [true, false])
    await limiter.close()
  }
  if (typeof client === 'function' && kind === 'postgres-advisory') {
    await (client as unknown as postgres.Sql).begin(async (tx) => {
      await lockInTransaction(tx, name)
      assert.equal(await rival.isLocked(name), true)
    })
  }
  await Promise.all([lock.close(), rival.close()])
  await Promise.all([driver.close(), other.close()])
  await Promise.all([client.end(), rivals.end()])
}
