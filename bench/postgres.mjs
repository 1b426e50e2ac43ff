// Compares the PostgreSQL drivers with bare statements through the same client, in interleaved rounds:
//   node bench/postgres.mjs postgres://postgres@127.0.0.1:5432/postgres [rounds] [seconds] [costs | hand-offs]
// It also measures how often one lock changes hands between eight processes that hold it for a millisecond each, and
// how evenly. "relaxed" is synchronous_commit = off, on both sides. It prints the load before and after, because other
// work on the machine affects every figure. 5 rounds of 1 s take less than four minutes. Each round is printed as it
// ends.
import { fork } from 'node:child_process'
import { loadavg } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { postgresDriver } from '../dist/drivers/postgres.js'
import { postgresAdvisoryDriver } from '../dist/drivers/postgres-advisory.js'
import { DistributedLock } from '../dist/index.js'
import { median } from './support/statistics.mjs'

const [url, rounds = '5', seconds = '1', role, subject] = process.argv.slice(2)
if (url === undefined) throw new Error('node bench/postgres.mjs postgres://user@host:port/database')

const connections = 4
const warmUpSeconds = 1
const compilingSeconds = 1.5

if (role === 'hand-off') await takeTurns()
else {
  printLoad()
  if (role !== 'hand-offs') await costs()
  if (role !== 'costs') await handOffs()
  printLoad()
}

async function costs() {
  const pool = new pg.Pool({ connectionString: url, max: connections })
  const relaxedPool = new pg.Pool({ connectionString: url, max: connections, options: '-c synchronous_commit=off' })
  // The bare pair must unlock on the connection that locked. It has as many connections as the others, and runs one
  // pair at a time on each.
  const pinnedPool = new pg.Pool({ connectionString: url, max: connections })
  const free = await Promise.all(Array.from({ length: connections }, () => pinnedPool.connect()))
  const clients = [...free]
  const waiting = []
  const onPinned = async (work) => {
    const client = free.pop() ?? (await new Promise((resolve) => waiting.push(resolve)))
    await work(client)
    const next = waiting.shift()
    if (next === undefined) free.push(client)
    else next(client)
  }
  await pool.query(`
    CREATE TABLE IF NOT EXISTS holdfast_bench (lock_name VARCHAR(255) PRIMARY KEY, holder_id VARCHAR(255) NOT NULL,
      acquired_at TIMESTAMPTZ NOT NULL, expires_at TIMESTAMPTZ NOT NULL, metadata JSONB);
    CREATE INDEX IF NOT EXISTS holdfast_bench_expires_at ON holdfast_bench (expires_at)`)
  const drivers = [
    postgresDriver({ client: pool }),
    postgresDriver({ client: pool, durability: 'relaxed' }),
    postgresAdvisoryDriver({ client: pool }),
  ]
  const locks = drivers.map((driver) => new DistributedLock({ driver }))
  let names = 0
  const cycle = async (lock) => {
    names += 1
    const result = await lock.acquire(`bench:${names}`, { blocking: false })
    await result.lock.release()
  }
  const insertAndDelete = async (client) => {
    names += 1
    const values = [`bench:${names}`, 'bench']
    await client.query(
      `INSERT INTO holdfast_bench VALUES ($1, $2, clock_timestamp(), clock_timestamp() + interval '30 s')
       ON CONFLICT (lock_name) DO UPDATE SET
         holder_id = excluded.holder_id, acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
       WHERE holdfast_bench.expires_at <= clock_timestamp() RETURNING lock_name`,
      values,
    )
    await client.query('DELETE FROM holdfast_bench WHERE lock_name = $1 AND holder_id = $2', values)
  }
  const subjects = {
    'bare INSERT + DELETE': () => insertAndDelete(pool),
    postgres: () => cycle(locks[0]),
    'bare INSERT + DELETE, relaxed': () => insertAndDelete(relaxedPool),
    'postgres, relaxed': () => cycle(locks[1]),
    'bare try_advisory + unlock'() {
      names += 1
      const values = [names]
      return onPinned(async (client) => {
        await client.query('SELECT pg_try_advisory_lock($1)', values)
        await client.query('SELECT pg_advisory_unlock($1)', values)
      })
    },
    'postgres-advisory': () => cycle(locks[2]),
  }
  const pairs = [
    ['bare INSERT + DELETE', 'postgres'],
    ['bare INSERT + DELETE, relaxed', 'postgres, relaxed'],
    ['bare try_advisory + unlock', 'postgres-advisory'],
  ]
  for (const each of Object.values(subjects)) await each()
  console.log(
    'acquire + release per second, median of the rounds; ratio of throughputs (at 1: also of latencies, inverted)',
  )
  for (const concurrency of [1, 64, 512]) {
    const measured = Object.fromEntries(Object.keys(subjects).map((name) => [name, []]))
    for (let round = 0; round < Number(rounds); round += 1) {
      for (const [name, run] of Object.entries(subjects)) measured[name].push(await rate(run, concurrency))
      const figures = Object.values(measured).map((values) => values[round].toFixed(0))
      console.log(`      round ${round + 1} at ${concurrency}: ${figures.join(' ')}`)
    }
    for (const [bare, ours] of pairs) {
      const [b, o] = [median(measured[bare]), median(measured[ours])]
      const perRound = measured[ours].map((value, index) => value / measured[bare][index])
      const figures = `${bare}: ${b.toFixed(0)}  ${ours}: ${o.toFixed(0)}  ratio ${median(perRound).toFixed(2)}`
      console.log(`${String(concurrency).padStart(4)}  ${figures}`)
    }
  }
  for (const lock of locks) await lock.close()
  for (const driver of drivers) await driver.close()
  for (const client of clients) client.release()
  await pinnedPool.end()
  await pool.query('DROP TABLE holdfast_bench')
  await pool.end()
  await relaxedPool.end()
}

async function rate(run, concurrency) {
  const startedMs = performance.now()
  const endMs = startedMs + Number(seconds) * 1_000
  let done = 0
  await Promise.all(
    Array.from({ length: concurrency }, async () => {
      while (performance.now() < endMs) {
        await run()
        done += 1
      }
    }),
  )
  return (done / (performance.now() - startedMs)) * 1_000
}

async function handOffs() {
  const kinds = ['bare pg_advisory_lock', 'postgres', 'postgres, relaxed', 'postgres-advisory']
  const measured = Object.fromEntries(kinds.map((kind) => [kind, []]))
  // At most three rounds: starting eight processes takes longer than the measurement.
  for (let round = 0; round < Math.min(Number(rounds), 3); round += 1) {
    for (const kind of kinds) measured[kind].push(await handOffRate(kind))
    const figures = kinds.map((kind) => `${kind} ${measured[kind][round].rate.toFixed(0)}`)
    console.log(`      round ${round + 1} of hand-offs: ${figures.join(', ')}`)
  }
  for (const kind of kinds) {
    const ratios = measured[kind].map(({ rate }, index) => rate / measured[kinds[0]][index].rate)
    const spread = measured[kind].map(({ rate }) => rate.toFixed(0)).join(' ')
    const unfair = Math.max(...measured[kind].map(({ most, least }) => most / least))
    const rate = median(measured[kind].map((each) => each.rate)).toFixed(0)
    console.log(
      `8 processes, 1 name, held 1 ms: ${kind}: ${rate}/s (${spread}), ` +
        `ratio ${median(ratios).toFixed(2)}, most/least of one process ${unfair.toFixed(2)}`,
    )
  }
}

async function handOffRate(kind) {
  const args = [url, rounds, seconds, 'hand-off', kind]
  const workers = Array.from({ length: 8 }, () => fork(new URL(import.meta.url), args))
  const exits = workers.map((worker) => new Promise((resolve) => worker.once('exit', resolve)))
  await Promise.all(workers.map((worker) => new Promise((resolve) => worker.once('message', resolve))))
  const startedMs = performance.now()
  const counts = await Promise.all(
    workers.map((worker) => {
      worker.send('go')
      return new Promise((resolve) => worker.once('message', resolve))
    }),
  )
  const elapsed = (performance.now() - startedMs) / 1_000 - warmUpSeconds
  await Promise.all(exits)
  return {
    rate: counts.reduce((sum, count) => sum + count, 0) / elapsed,
    most: Math.max(...counts),
    least: Math.min(...counts),
  }
}

async function takeTurns() {
  const pool = new pg.Pool({ connectionString: url, max: 4 })
  const [player, partner] = [await openPlayer(pool), await openPlayer(pool)]
  // Two players compete in this process until its code is compiled, as it is in a service that has run for a while.
  const compiledMs = performance.now() + compilingSeconds * 1_000
  await Promise.all(
    [player, partner].map(async ({ turn }) => {
      while (performance.now() < compiledMs) await turn(process.pid, () => {})
    }),
  )
  await partner.end()
  process.send('ready')
  await new Promise((resolve) => process.once('message', resolve))
  const hold = () => sleep(1)
  const countsFromMs = performance.now() + warmUpSeconds * 1_000
  while (performance.now() < countsFromMs) await player.turn(0, hold)
  const endMs = countsFromMs + Number(seconds) * 2_000
  let count = 0
  while (performance.now() < endMs) {
    await player.turn(0, hold)
    count += 1
  }
  process.send(count)
  await player.end()
  await pool.end()
  process.disconnect()
}

async function openPlayer(pool) {
  if (subject.startsWith('bare')) {
    const client = await pool.connect()
    return {
      async turn(number, hold) {
        await client.query('SELECT pg_advisory_lock(4711, $1)', [number])
        await hold()
        await client.query('SELECT pg_advisory_unlock(4711, $1)', [number])
      },
      end: async () => client.release(),
    }
  }
  const durability = subject.endsWith('relaxed') ? 'relaxed' : 'crash-safe'
  const isAdvisory = subject === 'postgres-advisory'
  const driver = isAdvisory ? postgresAdvisoryDriver({ client: pool }) : postgresDriver({ client: pool, durability })
  const lock = new DistributedLock({ driver })
  return {
    turn: (number, hold) => lock.withLock(`bench:${subject}:${number}`, hold, { blockingTimeoutSeconds: 60 }),
    async end() {
      await lock.close()
      await driver.close()
    },
  }
}

function printLoad() {
  const [lastMinute] = loadavg()
  console.log(`load of the last minute: ${lastMinute?.toFixed(1)}`)
}
