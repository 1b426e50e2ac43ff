import assert from 'node:assert/strict'
import { rmSync } from 'node:fs'
import { describe, it, vi } from 'vitest'
import { openDatabase, type SqliteDatabase, type SqliteStatement } from '../../../src/drivers/sqlite/client.ts'
import { openSqlite, sqliteDriver } from '../../../src/drivers/sqlite.ts'
import { DistributedLock } from '../../../src/primitives/lock/distributed-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { clientName } from '../../harness/sqlite-client.ts'
import { claimOn, createContext, grantOf, isGranted, rowsOf, type SqliteContext } from '../../harness/sqlite-context.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

describe.concurrent('sqlite alone: a database that is passed in', () => {
  it('keeps its own tables, rows, version, mark and settings', async () => {
    await using context = createContext()
    const database = await context.database()
    database.exec(`
      CREATE TABLE customers (name TEXT);
      INSERT INTO customers VALUES ('Ann');
      PRAGMA user_version = 42;
      PRAGMA application_id = 4711;
      PRAGMA synchronous = EXTRA;
      PRAGMA busy_timeout = 1234;
    `)
    const driver = await sqliteDriver({ database })
    const claim = claimOn('name')
    const { fencingToken } = await grantOf(driver, claim)
    await driver.release([{ ...claim, fencingToken }])
    assert.deepEqual(rowsOf(database, 'SELECT * FROM customers'), [{ name: 'Ann' }])
    assert.deepEqual(rowsOf(database, 'PRAGMA user_version'), [{ user_version: 42 }])
    assert.deepEqual(rowsOf(database, 'PRAGMA application_id'), [{ application_id: 4711 }])
    assert.deepEqual(rowsOf(database, 'PRAGMA synchronous'), [{ synchronous: 3 }])
    assert.deepEqual(rowsOf(database, 'PRAGMA busy_timeout'), [{ timeout: 1234 }])
    const added = rowsOf(database, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
      .map((row) => (row as { name: string }).name)
      .filter((name) => name !== 'customers' && !name.startsWith('sqlite_'))
    assert.ok(added.length > 0 && added.every((name) => name.startsWith('holdfast_')), `${added}`)
  })

  it('is not closed by us', async () => {
    await using context = createContext()
    const database = await context.database()
    const driver = await sqliteDriver({ database })
    await using lock = new DistributedLock({ driver })
    assert.ok((await lock.acquire('name')).acquired)
    await lock.close()
    await driver.close()
    await assert.rejects(driver.acquire([claimOn('name')], newCall()), { name: 'ClosedError' })
    assert.deepEqual(rowsOf(database, 'SELECT 1 AS one'), [{ one: 1 }])
  })

  it('excludes all other users of the file, however they opened it', async () => {
    await using context = createContext()
    const database = await context.database()
    database.exec('CREATE TABLE customers (name TEXT)')
    const driver = await sqliteDriver({ database })
    await grantOf(driver, claimOn('name'))
    assert.equal(await isGranted(await sqliteDriver({ database: await context.database() }), claimOn('name')), false)
    assert.equal(await isGranted(await context.opened(openSqlite(`sqlite:${context.path}`)), claimOn('name')), false)
  })

  it('during a transaction of the caller: an error that says so, no grant, and the transaction is intact', async () => {
    await using context = createContext()
    const database = await context.database()
    database.exec('CREATE TABLE customers (name TEXT)')
    const driver = await sqliteDriver({ database })
    database.exec('BEGIN')
    database.exec("INSERT INTO customers VALUES ('Ann')")
    const rejected = {
      name: 'StoreError',
      message: /has an open transaction; end it first, or pass in another conn/,
    }
    await assert.rejects(driver.acquire([claimOn('name')], newCall()), rejected)
    await assert.rejects(driver.inspect({}), rejected)
    await using lock = new DistributedLock({ driver })
    await assert.rejects(lock.acquire('name', { blocking: false }), { code: 'STORE_UNAVAILABLE' })
    database.exec("INSERT INTO customers VALUES ('Bob')")
    database.exec('COMMIT')
    const other = await context.database()
    assert.deepEqual(rowsOf(other, 'SELECT * FROM customers'), [{ name: 'Ann' }, { name: 'Bob' }])
    assert.deepEqual((await driver.inspect({})).leases, [])
    await grantOf(driver, claimOn('name'))
  })

  it('during a transaction from the start: refused, and the transaction is intact', async () => {
    await using context = createContext()
    const database = await context.database()
    database.exec('BEGIN')
    database.exec('CREATE TABLE customers (name TEXT)')
    await assert.rejects(sqliteDriver({ database }), { name: 'StoreError', message: /transaction/ })
    database.exec('COMMIT')
    await grantOf(await sqliteDriver({ database }), claimOn('name'))
  })

  it('that reads integers as BigInt: every call works, and the caller still reads BigInt', async () => {
    await using context = createContext()
    const database = await bigIntDatabase(context)
    const driver = await sqliteDriver({ database })
    const claim = claimOn('name')
    const { fencingToken, acquiredAtMs } = await grantOf(driver, claim)
    assert.deepEqual([typeof fencingToken, typeof acquiredAtMs], ['number', 'number'])
    assert.equal(await isGranted(driver, claimOn('name', { waiterTtlMs: 60_000 })), false)
    const { leases, waiters } = await driver.inspect({ lockName: 'name' })
    assert.deepEqual([leases[0]?.fencingToken, waiters.length], [fencingToken, 1])
    assert.deepEqual(await driver.renew([{ ...claim, fencingToken }]), ['renewed'])
    assert.deepEqual(await driver.release([{ ...claim, fencingToken }]), [true])
    assert.deepEqual(rowsOf(database, 'SELECT 1 AS one'), [{ one: 1n }])
  })

  it('in memory: refused, because it excludes no other process', async () => {
    const database = await openDatabase(':memory:')
    const rejected = { name: 'StoreError', message: /in memory excludes no other process/ }
    await assert.rejects(sqliteDriver({ database }), rejected)
    assert.deepEqual(rowsOf(database, 'SELECT 1 AS one'), [{ one: 1 }])
    database.close()
  })

  it('of a newer format: refused', async () => {
    await using context = createContext()
    const database = await context.database()
    await sqliteDriver({ database })
    database.exec('UPDATE holdfast_format SET version = version + 1')
    await assert.rejects(sqliteDriver({ database }), {
      name: 'StoreError',
      message: /has format \d+, and this version of Holdfast knows \d+; upgrade/,
    })
  })

  it('removed while it is open: an error that says so, and no grant', async () => {
    await using context = createContext()
    const driver = await sqliteDriver({ database: await context.database() })
    rmSync(context.path)
    await assert.rejects(driver.acquire([claimOn('name')], newCall()), {
      name: 'StoreError',
      message: /was removed or replaced while it was open; close the database and open it again/,
    })
  })

  it('full: an error that says so, no grant, and held locks stay held', async () => {
    await using context = createContext()
    const database = await context.database()
    const driver = await sqliteDriver({ database })
    const before = await grantOf(driver, claimOn('held before'))
    const [pages] = rowsOf(database, 'PRAGMA page_count') as { page_count: number }[]
    database.exec(`PRAGMA max_page_count = ${pages?.page_count}`)
    const large = { metadata: { text: 'x'.repeat(10_000) } }
    for (const group of [{}, {}, { group: 'all or none' }]) {
      await assert.rejects(
        driver.acquire([claimOn('small', group), claimOn('large', { ...large, ...group })], newCall()),
        {
          name: 'StoreError',
          message: /locks\.db: the disk is full/,
        },
      )
    }
    const names = (await driver.inspect({})).leases.map(({ lockName }) => lockName)
    assert.deepEqual(names, ['held before'])
    database.exec('PRAGMA max_page_count = 1000000')
    assert.ok((await grantOf(driver, claimOn('large', large))).fencingToken > before.fencingToken)
  })
})

/** A handle that reads integers as BigInt, which each client is asked for in its own way. */
async function bigIntDatabase(context: SqliteContext): Promise<SqliteDatabase> {
  const found = await context.database()
  const database = found as SqliteDatabase & { defaultSafeIntegers?(on: boolean): unknown }
  if (clientName() !== 'node:sqlite') {
    database.defaultSafeIntegers?.(true)
    return database
  }
  const prepare = database.prepare.bind(database)
  // What the option `readBigInts` of later versions does.
  database.prepare = (sql) => {
    const prepared = prepare(sql) as SqliteStatement & { setReadBigInts(on: boolean): void }
    prepared.setReadBigInts(true)
    return prepared
  }
  return database
}
