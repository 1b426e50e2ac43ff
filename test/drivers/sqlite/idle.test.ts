import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, it, vi } from 'vitest'
import type { SqliteDatabase } from '../../../src/drivers/sqlite/client.ts'
import { sqliteDriver } from '../../../src/drivers/sqlite.ts'
import { DistributedLock } from '../../../src/primitives/lock/distributed-lock.ts'
import { createContext } from '../../harness/sqlite-context.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

const WATCHED_MS = 3_000

describe.concurrent('sqlite alone: no statement that was not asked for', () => {
  it('a process that holds leases without a heartbeat, and waits for nothing, sends no statement', async () => {
    assert.deepEqual(await sentBy(async (lock) => void (await lock.acquire('name', { timeoutSeconds: 60 }))), [])
  })

  it.each([1, 1_000])(
    'a process that holds %s leases, and waits for nothing, sends only its renewals',
    async (leases) => {
      const timeoutSeconds = 3
      const sent = await sentBy(async (lock) => {
        await Promise.all(
          Array.from({ length: leases }, (_, at) => lock.acquire(`name ${at}`, { timeoutSeconds, heartbeat: true })),
        )
      })
      const renewals = sent.filter((sql) => sql.includes('UPDATE holdfast_leases')).length
      // A heartbeat takes a third of the TTL, with jitter.
      const turns = (WATCHED_MS / timeoutSeconds / 1_000) * 3
      // On a busy machine, some come later.
      assert.ok(renewals >= leases / 2 && renewals <= leases * (turns + 2), `${renewals} renewals`)
      const others = sent.filter((sql) => !sql.includes('UPDATE holdfast_leases'))
      // BEGIN, the time, COMMIT, and three sweeps, at most once a second: for each transaction, not for each lease.
      const perTransaction = /^BEGIN IMMEDIATE$|^COMMIT$|^PRAGMA busy_timeout|julianday\('now'\)|^DELETE .* LIMIT \?\)/s
      assert.deepEqual(
        others.filter((sql) => !perTransaction.test(sql)),
        [],
      )
      report(`${leases} leases with a TTL of ${timeoutSeconds} s`, sent)
    },
  )

  it('a waiter polls the number of the last change five times a second, and asks again every few seconds', async () => {
    const sent = await sentBy(async (lock, other) => {
      await other.acquire('name', { timeoutSeconds: 60 })
      void lock.acquire('name', { blockingTimeoutSeconds: 60 }).catch(() => {})
      await sleep(500)
    })
    const polls = sent.filter((sql) => sql === 'PRAGMA data_version').length
    assert.ok(polls <= (WATCHED_MS / 1_000) * 5 + 1, `${polls} polls`)
    // The request itself: about twenty statements, at most twice in this time, and a look after each.
    assert.ok(sent.length - polls <= 50, sent.filter((sql) => sql !== 'PRAGMA data_version').join('\n'))
    report('a waiter', sent)
  })
})

function report(who: string, sent: readonly string[]): void {
  if (process.env['HOLDFAST_TEST_FIGURES'] === undefined) return
  process.stdout.write(`${who}: ${(sent.length / (WATCHED_MS / 1_000)).toFixed(1)} statements/s\n`)
}

/** The statements of a process that did this first. Nothing else is done on its connection while it is watched. */
async function sentBy(
  work: (lock: DistributedLock, other: DistributedLock) => Promise<void>,
): Promise<readonly string[]> {
  await using context = createContext()
  const sent: string[] = []
  const driver = await sqliteDriver({ database: recorded(await context.database(), sent) })
  await using lock = new DistributedLock({ driver })
  await using other = new DistributedLock({ driver: await sqliteDriver({ database: await context.database() }) })
  await work(lock, other)
  sent.length = 0
  await sleep(WATCHED_MS)
  return sent.splice(0)
}

function recorded(database: SqliteDatabase, sent: string[]): SqliteDatabase {
  return {
    exec(sql) {
      sent.push(sql)
      return database.exec(sql)
    },
    prepare(sql) {
      const prepared = database.prepare(sql)
      const counted =
        (method: 'all' | 'get' | 'run') =>
        (...values: never[]) => {
          sent.push(sql)
          return prepared[method](...values)
        }
      return { all: counted('all'), get: counted('get'), run: counted('run') } as never
    },
    close: () => database.close(),
  }
}
