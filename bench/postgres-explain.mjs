// The cost of acquire, renew and release on tables of very different sizes, in interleaved rounds, and the plans of
// their statements:
//   node bench/postgres-explain.mjs postgres://postgres@127.0.0.1:5432/postgres [expired] [live]
// It creates the schemas holdfast_explain_… and drops them. The role must be allowed to load auto_explain.
import pg from 'pg'
import { postgresDriver } from '../dist/drivers/postgres.js'
import { buffersOf, plansOf, treeOf } from './support/postgres-plans.mjs'
import { median } from './support/statistics.mjs'

const [url, expired = '1000000', live = '100000'] = process.argv.slice(2)
if (url === undefined) throw new Error('node bench/postgres-explain.mjs postgres://user@host:port/database')

const rounds = 300
const client = new pg.Client(url)
await client.connect()
let names = 0

const tables = [
  await fill({ schema: 'holdfast_explain_small', expired: 0, live: 1_000 }),
  await fill({ schema: 'holdfast_explain_large', expired: Number(expired), live: Number(live) }),
]
// Filling the tables leaves work behind that is not measured.
await client.query('CHECKPOINT')
for (const count of [1, 64]) await measureCalls(count)
await measureSweeps()
print()
for (const { schema } of tables) await client.query(`DROP SCHEMA ${schema} CASCADE`)
await client.end()

async function fill({ schema, expired, live }) {
  await client.query(`SET client_min_messages = warning; DROP SCHEMA IF EXISTS ${schema} CASCADE`)
  await client.query('RESET client_min_messages')
  const driver = postgresDriver({ client, schema })
  await driver.inspect({})
  const text = `
    INSERT INTO ${schema}.distributed_locks (lock_name, holder_id, acquired_at, expires_at, claim_id, fencing_token)
    SELECT $2 || i, 'h', clock_timestamp() - interval '1 day', clock_timestamp() + $3::interval, $2 || i, i
    FROM generate_series(1, $1) i`
  await client.query(text, [expired, 'expired:', '-1 hour'])
  await client.query(text, [live, 'live:', '1 hour'])
  await client.query(`VACUUM ANALYZE ${schema}.distributed_locks`)
  return { schema, driver, title: `${expired} expired, ${live} live`, steps: new Map() }
}

async function measureCalls(count) {
  const times = tables.map(() => ({ acquire: [], renew: [], release: [] }))
  for (let round = 0; round < rounds; round += 1) {
    for (const [index, { driver }] of tables.entries()) {
      const claims = claimsFor(count)
      const leases = leasesOf(claims, await timed(times[index].acquire, () => driver.acquire(claims, { secret: '' })))
      await timed(times[index].renew, () => driver.renew(leases))
      await timed(times[index].release, () => driver.release(leases))
    }
  }
  for (const [index, { driver, steps }] of tables.entries()) {
    const claims = claimsFor(count)
    const acquire = await plansOf(client, () => driver.acquire(claims, { secret: '' }))
    const leases = leasesOf(claims, acquire.result)
    const renew = await plansOf(client, () => driver.renew(leases))
    const release = await plansOf(client, () => driver.release(leases))
    for (const [step, { plans }] of Object.entries({ acquire, renew, release })) {
      steps.set(`${step} × ${count}`, { ms: median(times[index][step]), plans })
    }
  }
}

async function measureSweeps() {
  for (const { schema, steps } of tables) {
    // The same settings as inside the functions that sweep.
    await client.query(`SET search_path TO ${schema}; SET enable_seqscan = off; SET enable_sort = off`)
    const times = []
    for (let round = 0; round < 50; round += 1) await timed(times, () => client.query('SELECT holdfast_sweep(32)'))
    const { plans } = await plansOf(client, () => client.query('SELECT holdfast_sweep(32)'))
    await client.query('RESET search_path; RESET enable_seqscan; RESET enable_sort')
    steps.set('sweep of 32', { ms: median(times), plans })
  }
}

function print() {
  const [small, large] = tables
  console.log(`median time of a call, and pages that its statements touch\n`)
  console.log(`${''.padEnd(14)}${small.title.padStart(32)}${large.title.padStart(32)}`)
  for (const step of small.steps.keys()) {
    const cells = tables.map(({ steps }) => {
      const { ms, plans } = steps.get(step)
      const pages = plans.reduce((sum, { plan }) => sum + buffersOf(plan), 0)
      return `${ms.toFixed(2)} ms, ${String(pages).padStart(4)} pages`.padStart(32)
    })
    console.log(step.padEnd(14) + cells.join(''))
  }
  console.log(`\nplans at ${large.title}`)
  for (const [step, { plans }] of large.steps) {
    console.log(`\n── ${step}`)
    // Equal plans are printed once.
    const different = plans.filter(({ text }, index) => plans.findIndex((each) => each.text === text) === index)
    for (const { plan } of different) console.log(treeOf(plan).trimEnd())
  }
}

function claimsFor(count) {
  return Array.from({ length: count }, () => {
    names += 1
    const lockName = `explain:${names}`
    return { lockName, claimId: lockName, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 }
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
