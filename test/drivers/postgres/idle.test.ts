import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { DistributedLock } from '../../../src/index.ts'

const url = inject('servers').postgres ?? ''
const schema = `idle_${randomBytes(6).toString('hex')}`
const pool = new pg.Pool({ connectionString: url, max: 2 })
const WATCHED_MS = 3_000

beforeAll(() => migratePostgres({ client: pool, schema }))
afterAll(async () => {
  await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
  await pool.end()
})

describe.concurrent('postgres: no statement that was not asked for', () => {
  it('a process that holds leases without a heartbeat, and waits for nothing, sends no statement', async () => {
    assert.deepEqual(await sentBy(async (lock) => void (await lock.acquire('quiet', { timeoutSeconds: 60 }))), [])
  })

  it.each([1, 1_000])(
    'a process that holds %s leases, and waits for nothing, sends only its renewals',
    async (leases) => {
      const sent = await sentBy(async (lock) => {
        const hold = (at: number) => lock.acquire(`${leases}:${at}`, { timeoutSeconds: 3, heartbeat: true })
        await Promise.all(Array.from({ length: leases }, (_, at) => hold(at)))
      })
      assert.deepEqual(
        sent.filter((text) => !text.includes('holdfast_call_change_leases')),
        [],
      )
      // A lease is renewed once a second, with jitter. Renewals that are due together are one statement.
      assert.ok(sent.length >= 2 && sent.length <= (leases === 1 ? 5 : 40), `${sent.length} statements`)
      report(`${leases} leases with a TTL of 3 s`, sent)
    },
  )

  it('a waiter reads the key of its wake-ups every five seconds, and asks again every few seconds', async () => {
    const sent = await sentBy(async (lock, other) => {
      await other.acquire('busy', { timeoutSeconds: 60 })
      void lock.acquire('busy', { blockingTimeoutSeconds: 60 }).catch(() => {})
      await sleep(1_000) // Until it listens.
    })
    assert.ok(sent.length <= 3, sent.join('\n'))
    report('a waiter', sent)
  })
})

function report(who: string, sent: readonly string[]): void {
  if (process.env['HOLDFAST_TEST_FIGURES'] === undefined) return
  process.stdout.write(`${who}: ${(sent.length / (WATCHED_MS / 1_000)).toFixed(1)} statements/s\n`)
}

/** The statements of a process that did this first, on all of its connections. */
async function sentBy(
  work: (lock: DistributedLock, other: DistributedLock) => Promise<void>,
): Promise<readonly string[]> {
  const sent: string[] = []
  class Recorded extends pg.Client {
    override query(...args: unknown[]): never {
      const [first] = args as [string | { readonly text: string }]
      sent.push(typeof first === 'string' ? first : first.text)
      return Reflect.apply(super.query, this, args) as never
    }
  }
  const client = new pg.Pool({ connectionString: url, Client: Recorded as typeof pg.Client })
  await using other = new DistributedLock({ driver: postgresDriver({ client: pool, schema }) })
  const lock = new DistributedLock({ driver: postgresDriver({ client, schema }) })
  await work(lock, other)
  sent.length = 0
  await sleep(WATCHED_MS)
  const watched = sent.splice(0)
  await lock.close()
  await client.end()
  return watched
}
