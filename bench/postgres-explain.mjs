// What acquire, renew and release cost on tables of very different sizes, and the plans of the statements inside:
//   node bench/postgres-explain.mjs postgres://postgres@127.0.0.1:5432/postgres [expired] [live]
// Works in a schema of its own, holdfast_explain, which it drops. The role has to be one that may load auto_explain.
import pg from 'pg'
import { postgresDriver } from '../dist/drivers/postgres.js'
import { buffersOf, plansOf, treeOf } from './support/postgres-plans.mjs'

const [url, expired = '1000000', live = '100000'] = process.argv.slice(2)
if (url === undefined) throw new Error('node bench/postgres-explain.mjs postgres://user@host:port/database')

const schema = 'holdfast_explain'
const rounds = 300
const client = new pg.Client(url)
await client.connect()
let names = 0

const small = await measure({ expired: 0, live: 1_000 })
const large = await measure({ expired: Number(expired), live: Number(live) })

console.log('\nmedian of a call, ms, and pages touched by its statements\n')
console.log(`${'step'.padEnd(14)}${small.title.padStart(30)}${large.title.padStart(34)}`)
for (const [step, { ms, pages }] of small.steps) {
  const other = large.steps.get(step)
  const cell = (ms, pages) => `${ms.toFixed(2)} ms, ${String(pages).padStart(4)} pages`
  console.log(`${step.padEnd(14)}${cell(ms, pages).padStart(30)}${cell(other.ms, other.pages).padStart(34)}`)
}
console.log(`\nplans at ${large.title}`)
for (const [step, { plans }] of large.steps) {
  console.log(`\n── ${step}`)
  for (const { plan } of plans) console.log(treeOf(plan).trimEnd())
}
await client.query(`DROP SCHEMA ${schema} CASCADE`)
await client.end()

async function measure(size) {
  await client.query(`SET client_min_messages = warning; DROP SCHEMA IF EXISTS ${schema} CASCADE`)
  await client.query('RESET client_min_messages')
  const driver = postgresDriver({ client, schema })
  await driver.inspect({})
  const fill = `INSERT INTO ${schema}.distributed_locks (lock_name, holder_id, acquired_at, expires_at, claim_id, fencing_token)
    SELECT $2 || i, 'h', clock_timestamp() - interval '1 day', clock_timestamp() + $3::interval, $2 || i, i FROM generate_series(1, $1) i`
  await client.query(fill, [size.expired, 'expired:', '-1 hour'])
  await client.query(fill, [size.live, 'live:', '1 hour'])
  // What filling it has left to do is not what is measured.
  await client.query(`VACUUM ANALYZE ${schema}.distributed_locks`)
  await client.query('CHECKPOINT')
  const steps = new Map()
  for (const count of [1, 64]) {
    const times = { acquire: [], renew: [], release: [] }
    for (let round = 0; round < rounds; round += 1) {
      const claims = claimsFor(count)
      const leases = await timed(times.acquire, async () => leasesOf(claims, await driver.acquire(claims)))
      await timed(times.renew, () => driver.renew(leases))
      await timed(times.release, () => driver.release(leases))
    }
    const claims = claimsFor(count)
    const acquire = await plansOf(client, async () => leasesOf(claims, await driver.acquire(claims)))
    const renew = await plansOf(client, () => driver.renew(acquire.result))
    const release = await plansOf(client, () => driver.release(acquire.result))
    for (const [step, { plans }] of Object.entries({ acquire, renew, release })) {
      const pages = plans.reduce((sum, { plan }) => sum + buffersOf(plan), 0)
      // 64 times the same plan says no more than the first.
      const different = plans.filter(({ text }, index) => plans.findIndex((each) => each.text === text) === index)
      steps.set(`${step} × ${count}`, { ms: median(times[step]), pages, plans: different })
    }
  }
  const { plans } = await plansOf(client, () =>
    client.query(`SET search_path TO ${schema}; SET enable_seqscan = off; SELECT holdfast_sweep(32)`),
  )
  await client.query('RESET search_path; RESET enable_seqscan')
  const pages = plans.reduce((sum, { plan }) => sum + buffersOf(plan), 0)
  const sweep = []
  for (let round = 0; round < 20; round += 1) {
    await timed(sweep, () => client.query(`SET search_path TO ${schema}; SELECT holdfast_sweep(32); RESET search_path`))
  }
  steps.set('sweep of 32', { ms: median(sweep), pages, plans })
  const left = await client.query(
    `SELECT count(*) FROM ${schema}.distributed_locks WHERE expires_at < clock_timestamp()`,
  )
  const title = `${size.expired} expired, ${size.live} live`
  console.log(`${title}: ${left.rows[0].count} expired rows left after ${2 * rounds} rounds`)
  await driver.close()
  return { title, steps }
}

function claimsFor(count) {
  return Array.from({ length: count }, () => {
    names += 1
    const lockName = `explain:${names}`
    return { lockName, claimId: lockName, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waitMs: 0 }
  })
}

function leasesOf(claims, answers) {
  return claims.map((claim, index) => ({ ...claim, fencingToken: answers[index].fencingToken }))
}

async function timed(times, work) {
  const startedMs = performance.now()
  const result = await work()
  times.push(performance.now() - startedMs)
  return result
}

function median(numbers) {
  return numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)]
}
