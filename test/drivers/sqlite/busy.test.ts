import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, it, vi } from 'vitest'
import type { StoreError } from '../../../src/core/errors.ts'
import { systemClock } from '../../../src/core/time/clock.ts'
import { sqliteCode, storeErrorFrom } from '../../../src/drivers/sqlite/errors.ts'
import { MAX_BUSY_MS, Patience } from '../../../src/drivers/sqlite/patience.ts'
import { openSqlite, sqliteDriver } from '../../../src/drivers/sqlite.ts'
import { DistributedLock } from '../../../src/primitives/lock/distributed-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { claimOn, createContext, grantOf } from '../../harness/sqlite-context.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

describe.concurrent('sqlite alone: failure 32: another program has the write lock', () => {
  it('for a moment: the claim is granted when the lock is free, without an error', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const other = await context.database()
    other.exec('BEGIN IMMEDIATE')
    const granted = grantOf(driver, claimOn('name'))
    await sleep(MAX_BUSY_MS / 8)
    other.exec('COMMIT')
    await granted
  })

  const kinds = [
    ['a file of ours', (path: string) => openSqlite(`sqlite:${path}`)],
    ['a database passed in, whose own settings would block the thread', undefined],
  ] as const
  it.each(kinds)(
    'for longer than the bound, %s: an error that says so, no grant, and a running event loop',
    async (_, open) => {
      await using context = createContext()
      const passedIn = open === undefined ? await context.database() : undefined
      passedIn?.exec('PRAGMA busy_timeout = 30000')
      const opening = passedIn === undefined ? open?.(context.path) : sqliteDriver({ database: passedIn })
      assert.ok(opening !== undefined)
      const driver = await context.opened(opening)
      const held = claimOn('held before')
      const { fencingToken } = await grantOf(driver, held)
      const other = await context.database()
      other.exec('BEGIN IMMEDIATE')

      let ticks = 0
      const ticking = setInterval(() => {
        ticks += 1
      }, 20)
      const startedMs = performance.now()
      const message = /locks\.db: another process has kept the write lock for too long/
      await Promise.all([
        assert.rejects(driver.acquire([claimOn('name')], newCall()), { name: 'StoreError', message }),
        assert.rejects(driver.renew([{ ...held, fencingToken }]), { name: 'StoreError', message }),
        assert.rejects(driver.release([{ ...held, fencingToken }]), { name: 'StoreError', message }),
      ])
      clearInterval(ticking)
      assert.ok(performance.now() - startedMs >= MAX_BUSY_MS - 1)
      // A blocked thread would have one tick at the end. An idle machine has a hundred.
      assert.ok(ticks >= 10, `${ticks} ticks`)

      // Leases can be inspected meanwhile, and what was refused has left nothing behind.
      assert.deepEqual(
        (await driver.inspect({})).leases.map(({ claimId }) => claimId),
        [held.claimId],
      )
      other.exec('ROLLBACK')
      await grantOf(driver, claimOn('name'))
    },
  )

  it('while a file is opened: it opens if it was in use before', async () => {
    await using context = createContext()
    await context.opened(openSqlite(`sqlite:${context.path}`))
    const other = await context.database()
    other.exec('BEGIN IMMEDIATE')
    const late = await context.opened(openSqlite(`sqlite:${context.path}`))
    assert.deepEqual((await late.inspect({})).leases, [])
    other.exec('ROLLBACK')
  })

  it('a waiter survives it', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    await using lock = new DistributedLock({ driver })
    const other = await context.database()
    other.exec('BEGIN IMMEDIATE')
    const waiting = lock.acquire('name', { blockingTimeoutSeconds: 15 })
    await sleep(MAX_BUSY_MS * 1.2)
    other.exec('ROLLBACK')
    assert.ok((await waiting).acquired)
  })

  it('a bug of ours inside a transaction leaves no transaction open', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const circular: Record<string, unknown> = {}
    circular['self'] = circular
    await assert.rejects(driver.acquire([claimOn('first'), claimOn('name', { metadata: circular })], newCall()))
    assert.deepEqual((await driver.inspect({})).leases, [])
    await grantOf(driver, claimOn('name'))
  })
})

describe('sqlite alone: the error codes of every client are understood', () => {
  it.each<[string, unknown, string]>([
    ['better-sqlite3', Object.assign(new Error('database is locked'), { code: 'SQLITE_BUSY_SNAPSHOT' }), 'SQLITE_BUSY'],
    [
      'node:sqlite',
      Object.assign(new Error('disk I/O error'), { code: 'ERR_SQLITE_ERROR', errcode: 778 }),
      'SQLITE_IOERR',
    ],
    ['libsql', Object.assign(new Error('database is locked'), { code: 'SQLITE_BUSY' }), 'SQLITE_BUSY'],
    ['libsql without a code', Object.assign(new Error('database is locked'), { code: '' }), 'SQLITE_BUSY'],
    [
      'libsql when it opens a file',
      new Error('ConnectionFailed("Unable to open connection to local database /x: 14")'),
      'SQLITE_CANTOPEN',
    ],
  ])('%s', (_, error, code) => {
    assert.equal(sqliteCode(error), code)
  })
})

describe.concurrent('sqlite alone, failure 75: many processes wait for the write lock of one file', () => {
  const BUSY_MS = 1_500

  it('a claim tries less and less often, and a heartbeat every few milliseconds', async () => {
    await using context = createContext()
    const tries: Record<string, number> = {}
    for (const call of ['acquire', 'renew'] as const) {
      const database = await context.database()
      const exec = database.exec.bind(database)
      database.exec = (sql) => {
        if (sql === 'BEGIN IMMEDIATE') tries[call] = (tries[call] ?? 0) + 1
        return exec(sql)
      }
      const driver = await sqliteDriver({ database })
      const held = claimOn(call)
      const { fencingToken } = await grantOf(driver, held)
      const other = await context.database()
      other.exec('BEGIN IMMEDIATE')
      tries[call] = 0
      const waiting =
        call === 'acquire' ? driver.acquire([claimOn('name')], newCall()) : driver.renew([{ ...held, fencingToken }])
      await sleep(BUSY_MS)
      other.exec('COMMIT')
      await waiting
    }
    // 40 processes with the pauses of before, 1 to 3 ms, used up both cores of a machine with tries.
    assert.ok((tries['acquire'] ?? 0) <= 80, `${tries['acquire']} tries`)
    assert.ok((tries['renew'] ?? 0) >= BUSY_MS / 30, `${tries['renew']} heartbeats`)
    assert.ok((tries['renew'] ?? 0) <= BUSY_MS / 3, `${tries['renew']} heartbeats`)
  })

  it('a heartbeat is sent while claims of its own process wait', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const held = claimOn('held')
    const { fencingToken } = await grantOf(driver, held)
    const other = await context.database()
    const order: string[] = []
    // The pauses are random, and a busy machine lets several end at one moment. So the best of some rounds counts.
    for (let round = 0; round < 6 && order.indexOf('heartbeat') !== 0; round += 1) {
      order.length = 0
      other.exec('BEGIN IMMEDIATE')
      const claims = Array.from({ length: 5 }, (_, at) =>
        driver.acquire([claimOn(`name ${round} ${at}`)], newCall()).then(() => order.push('claim')),
      )
      await sleep(600) // The pauses of the claims grow.
      const renewed = driver.renew([{ ...held, fencingToken }]).then(() => order.push('heartbeat'))
      await sleep(50)
      other.exec('COMMIT')
      await Promise.all([renewed, ...claims])
    }
    // Its pauses are at most 8 ms, those of the claims about 64 ms by now.
    assert.equal(order[0], 'heartbeat', `${order}`)
  })
})

describe('sqlite alone: errors that pass with time', () => {
  const passing: [string, object][] = [
    ['better-sqlite3', { code: 'SQLITE_PROTOCOL' }],
    ['node:sqlite', { code: 'ERR_SQLITE_ERROR', errcode: 15 }],
    ['libsql without a code', { code: '' }],
  ]
  it.each(passing)('SQLITE_PROTOCOL, a race for the index of the log: %s is tried again', async (_, parts) => {
    const error = Object.assign(new Error('locking protocol'), parts)
    let tries = 0
    const answer = await new Patience(systemClock).untilFree('/locks.db', () => {
      tries += 1
      if (tries === 1) throw error
      return 'done'
    })
    assert.deepEqual([answer, tries], ['done', 2])
    assert.equal((storeErrorFrom(error, '/locks.db') as StoreError).retryable, true)
  })
})

describe('sqlite alone: a full disk', () => {
  const mountable = canMount()
  it.skipIf(!mountable)(
    `says so, grants nothing, and works again when there is room${mountable ? '' : ' (skipped: only root can mount)'}`,
    async () => {
      await using context = createContext()
      const disk = `${context.folder}/disk`
      mkdirSync(disk)
      execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=512k', 'tmpfs', disk])
      try {
        const driver = await openSqlite(`sqlite:${disk}/locks.db`)
        const before = await grantOf(driver, claimOn('held before'))
        try {
          writeFileSync(`${disk}/filler`, Buffer.alloc(600_000))
        } catch (error) {
          assert.equal((error as NodeJS.ErrnoException).code, 'ENOSPC')
        }
        let granted = 0
        // The log has some room left from before, which is soon used up.
        const filling = async () => {
          for (; granted < 1_000; granted += 1) await grantOf(driver, claimOn(`name ${granted}`))
        }
        await assert.rejects(filling(), { name: 'StoreError', message: /locks\.db: the disk is full/ })
        assert.equal((await driver.inspect({ pageSize: 1_001 })).leases.length, granted + 1)
        rmSync(`${disk}/filler`)
        const after = await grantOf(driver, claimOn(`name ${granted}`))
        assert.ok(after.fencingToken > before.fencingToken)
        await driver.close()
      } finally {
        // A client may keep the file open until garbage collection.
        execFileSync('umount', ['--lazy', disk])
      }
    },
  )
})

/** CAP_SYS_ADMIN is bit 21. Root in a container often lacks it. */
function canMount(): boolean {
  if (process.platform !== 'linux') return false
  const [, capabilities] = /^CapEff:\s*([0-9a-f]+)$/m.exec(readFileSync('/proc/self/status', 'utf8')) ?? []
  return ((BigInt(`0x${capabilities ?? '0'}`) >> 21n) & 1n) === 1n
}
