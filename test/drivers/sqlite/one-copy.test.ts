import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { Worker } from 'node:worker_threads'
import { describe, it, vi } from 'vitest'
import type { SqliteDatabase } from '../../../src/drivers/sqlite/client.ts'
import { openSqlite, sqliteDriver } from '../../../src/drivers/sqlite.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { makeFolder } from '../../harness/folders.ts'
import { clientName, secondCopy } from '../../harness/sqlite-client.ts'
import { claimOn, createContext, grantOf, isGranted, type SqliteContext } from '../../harness/sqlite-context.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

const REFUSED = { name: 'StoreError', message: /locks\.db is open in this process through two copies of SQLite/ }
/** Longer than a driver takes to look for another copy again. */
const LOOKED_MS = 1_300
const FIRST = { client: clientName(), folder: process.env['HOLDFAST_SQLITE_CLIENT_FOLDER'] || process.cwd() }
const SECOND = { client: 'libsql', folder: makeFolder('second-copy').path }
const Second = secondCopy(SECOND.folder)

/** POSIX locks belong to the process: two copies of SQLite in one process do not exclude each other. */
describe('sqlite alone, failure 73: two copies of SQLite in one process', () => {
  it('a database of another copy is refused while a URL has the file open', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    await grantOf(driver, claimOn('name'))
    await assert.rejects(sqliteDriver({ database: secondOn(context) }), REFUSED)
  })

  // Two copies of one build can only be told apart when both have the file open.
  it.skipIf(clientName() === 'libsql')(
    'a URL is refused without opening the file while another copy has the locks',
    async () => {
      await using context = createContext()
      const database = secondOn(context)
      const driver = await sqliteDriver({ database })
      const held = claimOn('held')
      const { fencingToken } = await grantOf(driver, held)
      const files = openFiles()
      await assert.rejects(openSqlite(`sqlite:${context.path}`), REFUSED)
      assert.equal(openFiles(), files)
      // The first one has not noticed anything.
      await sleep(LOOKED_MS)
      assert.deepEqual(await driver.renew([{ ...held, fencingToken }]), ['renewed'])
      await grantOf(driver, claimOn('name'))
      await driver.close()
      database.close()
      await collectGarbage()
      const next = await context.opened(openSqlite(`sqlite:${context.path}`))
      assert.equal(await isGranted(next, claimOn('held')), false)
    },
  )

  it('a URL is refused while the program uses another copy, whose connection stays as it is', async () => {
    await using context = createContext()
    const database = secondOn(context)
    database.exec('PRAGMA application_id = 1213156420; PRAGMA journal_mode = WAL; CREATE TABLE customers (name TEXT)')
    await assert.rejects(openSqlite(`sqlite:${context.path}`), REFUSED)
    // A connection that was closed would have removed the log, or the locks, of the other one.
    database.exec("INSERT INTO customers VALUES ('Ann')")
    const read = `console.log(JSON.stringify(new (require('libsql'))(process.argv[1]).prepare(process.argv[2]).all()))`
    const args = ['--eval', read, context.path, 'SELECT name FROM customers']
    assert.deepEqual(JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8' })), [{ name: 'Ann' }])
  })

  it('that the program opens later is noticed: nothing is granted until it is closed', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const held = claimOn('held')
    const { fencingToken } = await grantOf(driver, held)
    const second = secondOn(context)
    second.prepare('SELECT * FROM holdfast_leases').all()
    // On a busy machine a look takes long, and the next one comes later.
    for (const untilMs = performance.now() + 15_000; performance.now() < untilMs; await sleep(100)) {
      const granted = await isGranted(driver, claimOn('early')).catch(() => 'refused')
      if (granted === 'refused') break
    }
    await assert.rejects(driver.acquire([claimOn('name')], newCall()), REFUSED)
    await assert.rejects(driver.renew([{ ...held, fencingToken }]), REFUSED)
    second.close()
    await collectGarbage()
    // Its end has dropped the locks of this process, so the file is opened again. libsql, which may keep its file open,
    // would not take them again.
    if (clientName() === 'libsql') return
    assert.deepEqual(await driver.renew([{ ...held, fencingToken }]), ['renewed'])
    await grantOf(driver, claimOn('name'))
    await sleep(LOOKED_MS)
    await grantOf(driver, claimOn('late'))
  })

  it('in a worker thread: refused there', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    await grantOf(driver, claimOn('name'))
    const refusal = await openedInWorker(context, SECOND)
    assert.match(refusal as string, REFUSED.message)
  })

  it('the same copy in a worker thread, and twice in one thread: allowed', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    await grantOf(driver, claimOn('name'))
    await context.opened(openSqlite(`sqlite:${context.path}`))
    await sqliteDriver({ database: await context.database() })
    const opened = await openedInWorker(context, FIRST)
    assert.equal(opened, 'opened')
    await sleep(LOOKED_MS)
    await grantOf(driver, claimOn('late'))
  })

  // The driver on a URL would still have the file open in the second round: see collectGarbage.
  it.skipIf(clientName() === 'libsql')('a driver that was closed does not count, even after its database', async () => {
    await using context = createContext()
    for (const order of ['driver first', 'database first']) {
      const database = secondOn(context)
      const driver = await sqliteDriver({ database })
      await grantOf(driver, claimOn(order))
      if (order === 'database first') database.close()
      await driver.close().catch(() => {})
      if (order === 'driver first') database.close()
      await collectGarbage()
      await (await openSqlite(`sqlite:${context.path}`)).close()
    }
  })

  it('in exclusive locking mode, which keeps all others out: refused', async () => {
    await using context = createContext()
    const database = await context.database()
    database.exec('PRAGMA locking_mode = EXCLUSIVE')
    await assert.rejects(sqliteDriver({ database }), { name: 'StoreError', message: /in exclusive locking mode/ })
  })
})

function secondOn(context: SqliteContext): SqliteDatabase {
  return new Second(context.path)
}

/** libsql keeps a file open until its statements are garbage-collected. */
async function collectGarbage(): Promise<void> {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  for (let times = 0; times < 3; times += 1) {
    collect()
    await sleep(20)
  }
}

const openFiles = (): number => readdirSync('/proc/self/fd').length

/** Opens the file in a worker thread, with a library from this folder, and passes it to the built driver. */
async function openedInWorker(context: SqliteContext, library: { client: string; folder: string }): Promise<string> {
  const source = `
    const { parentPort, workerData } = require('node:worker_threads')
    const { path, client, folder, driver } = workerData
    const found = require('node:module').createRequire(folder + '/package.json')(client)
    import(driver).then(async ({ sqliteDriver }) => {
      const database = new (found.DatabaseSync ?? found)(path)
      const answer = await sqliteDriver({ database }).then(() => 'opened', ({ message }) => message)
      parentPort.postMessage(answer)
    })
  `
  const driver = new URL('../../../dist/drivers/sqlite.js', import.meta.url).href
  const worker = new Worker(source, { eval: true, workerData: { path: context.path, driver, ...library } })
  try {
    const [answer] = (await once(worker, 'message')) as [string]
    return answer
  } finally {
    await worker.terminate()
  }
}
