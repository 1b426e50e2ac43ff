import { randomUUID } from 'node:crypto'
import type { Claim, Driver } from 'holdfast/driver'
import pg from 'pg'
import { load } from '../connect.ts'
import type { Belief } from '../faults.ts'

export interface Crowd {
  dist: string
  url: string
  /** What the planner believes when the crowd arrives. */
  of: Belief
  waiters: number
  /** The lock that most of them wait for. Another process holds it for the entire time. */
  lockName: string
  forMs: number
  signal: AbortSignal
}

const LIST = 500
const TTL_MS = 30_000
const PLACE_MS = 10_000
/** One in four waits for a lock of the crowd itself, which is handed over meanwhile. */
const OWN_SHARE = 0.25
/** Between two times at which all ask again, as processes with many waiters do. */
const HAND_OVERS = 50

/**
 * A claim reads a few rows, up to 100 places in front of it, and what is left of places in front of those. The clients
 * read little beside that. At least twice as many wait.
 */
const MOST_ROWS = 1_000
/** Statistics are made when so many wait. */
const EARLY = 100

/** SQL that makes statistics, where `own` alone is waited for. */
const BELIEFS: Readonly<Record<Belief, (own: string) => string>> = {
  empty: () => `
    ANALYZE distributed_locks, holdfast_waiters;
    UPDATE pg_class SET reltuples = 0, relpages = 1
    WHERE oid IN ('distributed_locks'::regclass, 'holdfast_waiters'::regclass)
      OR oid IN (SELECT indexrelid FROM pg_index
        WHERE indrelid IN ('distributed_locks'::regclass, 'holdfast_waiters'::regclass))`,
  // As if the places had been renewed since. No other session sees the times of this transaction.
  expired: (own) => {
    const move = (by: string): string => `
      UPDATE distributed_locks SET expires_at = expires_at ${by} interval '1 hour' WHERE lock_name = '${own}';
      UPDATE holdfast_waiters SET expires_at = expires_at ${by} interval '1 hour' WHERE lock_name = '${own}';`
    return `BEGIN; ${move('-')} ANALYZE distributed_locks, holdfast_waiters; ${move('+')} COMMIT`
  },
}

/** Returns what went wrong: every claim is answered, and the lock of the crowd is handed over in the queue's order. */
export async function gatherCrowd({ dist, url, of, waiters, lockName, forMs, signal }: Crowd): Promise<string[]> {
  const drivers = await load<typeof import('holdfast/drivers/postgres')>({ dist }, 'drivers/postgres.js')
  const pool = new pg.Pool({ connectionString: url, max: 3 }).on('error', () => {})
  const driver = drivers.postgresDriver({ client: pool })
  const own = `crowd:${randomUUID()}`
  const count = Math.floor(waiters * OWN_SHARE)
  const queue = Array.from({ length: count }, () => claimOn(own))
  const others = Array.from({ length: waiters - count }, () => claimOn(lockName))
  const wrong: string[] = []
  let asked = 0
  const before = await rowsRead(url)
  try {
    await ask(driver, queue.slice(0, EARLY), wrong)
    await pool.query(BELIEFS[of](own))
    const endMs = performance.now() + forMs
    let last = 0
    do {
      // At the same time, but the places of one name in their order.
      await Promise.all([ask(driver, queue, wrong), ask(driver, others, wrong)])
      asked += queue.length + others.length
      for (let at = 0; at < HAND_OVERS && queue.length > 1 && wrong.length === 0; at += 1) {
        last = await handOver(driver, queue, last, wrong)
      }
    } while (performance.now() < endMs && !signal.aborted && wrong.length === 0)
  } catch (error) {
    wrong.push(`a call of the crowd failed: ${error}`)
  } finally {
    await leave(driver, [...queue, ...others]).catch((error: unknown) => wrong.push(`the crowd cannot leave: ${error}`))
    await driver.close()
    await pool.end()
  }
  // The sessions have ended, so the server has counted what they read.
  const each = ((await rowsRead(url)) - before) / asked
  if (each > MOST_ROWS) wrong.push(`each of ${asked} claims of the crowd read ${each.toFixed(0)} rows`)
  return wrong
}

async function rowsRead(url: string): Promise<number> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    const { rows } = await client.query(
      `SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables)
         + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes) AS rows`,
    )
    return Number(rows[0]?.rows)
  } finally {
    await client.end()
  }
}

const claimOn = (lockName: string): Claim => ({
  lockName,
  claimId: randomUUID(),
  holderId: 'crowd',
  mode: 'exclusive',
  permits: 1,
  ttlMs: TTL_MS,
  waiterTtlMs: PLACE_MS,
})

async function ask(driver: Driver, claims: readonly Claim[], wrong: string[]): Promise<void> {
  await inLists(claims, async (list) => {
    const answers = await driver.acquire(list, { secret: randomUUID() })
    for (const answer of answers) if (answer instanceof Error) wrong.push(`a claim of the crowd failed: ${answer}`)
  })
}

/** The first of the queue releases the lock, and the second one must have it. Returns its token. */
async function handOver(driver: Driver, queue: Claim[], last: number, wrong: string[]): Promise<number> {
  const first = queue.shift() as Claim
  const [released] = await driver.release([first])
  const [answer] = await driver.acquire([queue[0] as Claim], { secret: randomUUID() })
  if (released !== true) wrong.push(`the first of the crowd had no lease: ${released}`)
  const isNext = answer !== undefined && 'granted' in answer && answer.granted && answer.fencingToken > last
  if (isNext) return answer.fencingToken
  wrong.push(`the next of the crowd was not granted the lock: ${JSON.stringify(answer)} after the token ${last}`)
  return last
}

const leave = (driver: Driver, claims: readonly Claim[]): Promise<void> =>
  inLists(claims, async (list) => void (await driver.release(list)))

async function inLists(claims: readonly Claim[], work: (list: readonly Claim[]) => Promise<void>): Promise<void> {
  for (let at = 0; at < claims.length; at += LIST) await work(claims.slice(at, at + LIST))
}
