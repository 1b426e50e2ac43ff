import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { AcquireAnswer, Claim, Driver, LeaseRef, RateChange, RateLimit } from '../../../src/core/driver.ts'
import { migratePostgres, postgresDriver } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { seededRandom } from '../../../src/testing/index.ts'
import { claimOn, unique } from '../../harness/postgres-context.ts'

/**
 * One claim waits for its row, a list and a group do not, and one rate limit has a path of its own. They must decide
 * alike. `SEED=` replays a failure.
 */

const schema = `equal_${randomBytes(6).toString('hex')}`
const seeds = process.env['SEED'] ? [Number(process.env['SEED'])] : [1, 2, 3, randomBytes(4).readUInt32BE()]
let pool: pg.Pool
let driver: Driver

beforeAll(async () => {
  pool = new pg.Pool({
    connectionString: inject('servers').postgres ?? '',
    max: 8,
    options: `-c search_path=${schema}`,
  })
  await migratePostgres({ client: pool, schema })
  driver = postgresDriver({ client: pool, schema })
})
afterAll(async () => {
  await driver.close()
  await pool.query(`SET client_min_messages = warning; DROP SCHEMA ${schema} CASCADE`)
  await pool.end()
})

describe('postgres: paths of the SQL that must decide alike', () => {
  it.each(seeds)('one claim, a list and a group get the same answers to the same calls (seed %i)', async (seed) => {
    const alone = await answersTo(seed, 'alone')
    assert.ok(new Set(alone.map((answer) => JSON.stringify(answer))).size > 10, 'the calls differ')
    assert.deepEqual(await answersTo(seed, 'list'), alone)
    assert.deepEqual(await answersTo(seed, 'group'), alone)
  })

  it.each(seeds)(
    'one rate limit decides alike by itself and beside one that is never reached (seed %i)',
    async (seed) => {
      assert.deepEqual(await ratesWith(seed, [TIGHT, LOOSE]), await ratesWith(seed, [TIGHT]))
    },
  )
})

type Form = 'alone' | 'list' | 'group'

/** Sends random claims, renewals and releases on three names in one form, and returns the comparable answers. */
async function answersTo(seed: number, form: Form): Promise<unknown[]> {
  const random = seededRandom(seed)
  const world = unique(form)
  const plainOf = (text: string): string => text.replace(`${world}:`, '')
  const claims: Claim[] = []
  const tokens = new Map<string, number>()
  const answers: unknown[] = []
  for (let step = 0; step < STEPS; step += 1) {
    const known = claims[random.whole(0, claims.length)]
    const kind = random.pick(['acquire', 'acquire', 'acquire', 'renew', 'release', 'release', 'plain'])
    if (kind === 'plain') {
      const call = random.pick(['acquire_lock', 'release_lock'])
      const { rows } = await pool.query(`SELECT ${call}($1, 'psql') AS done`, [`${world}:${random.whole(1, 3)}`])
      answers.push([call, rows[0].done])
    } else if (kind === 'acquire') {
      const claim = known ?? newClaim(`${world}:${random.whole(1, 3)}`, `${world}:claim ${step}`, random)
      if (known === undefined) claims.push(claim)
      const answer = await acquire(claim, form)
      if ('granted' in answer && answer.granted) tokens.set(claim.claimId, answer.fencingToken)
      answers.push(comparable(answer, plainOf))
    } else if (known !== undefined) {
      const [ttlMs, hasToken] = [random.pick([60_000, 600_000]), random.chance(0.5)]
      const token = tokens.get(known.claimId)
      const ref = { lockName: known.lockName, claimId: known.claimId }
      const other = { lockName: unique('other'), claimId: unique('other'), fencingToken: 1, ttlMs }
      if (kind === 'renew' && token !== undefined) {
        const renewal = { ...ref, fencingToken: token, ttlMs }
        const [renewed] = await driver.renew(form === 'list' ? [renewal, other] : [renewal])
        answers.push(renewed)
      } else if (kind === 'release') {
        const lease = hasToken && token !== undefined ? { ...ref, fencingToken: token } : ref
        answers.push(await release(lease, form, other))
      }
    }
    const { leases, waiters } = await driver.inspect({ prefix: `${world}:` })
    answers.push([...leases, ...waiters].map(({ claimId, mode }) => `${plainOf(claimId)} ${mode}`))
  }
  return answers
}

const STEPS = 80

function newClaim(lockName: string, claimId: string, random: ReturnType<typeof seededRandom>): Claim {
  const [waiterTtlMs, ttlMs] = [random.pick([0, 600_000]), random.pick([60_000, 600_000])]
  const claim = { ...claimOn(lockName, waiterTtlMs), claimId, ttlMs }
  if (random.chance(0.5)) return claim
  const limit = random.pick([undefined, 2, 3])
  const permits = limit === undefined ? 1 : random.whole(1, 2)
  return { ...claim, mode: 'shared', permits, ...(limit !== undefined && { limit }) }
}

async function acquire(claim: Claim, form: Form): Promise<AcquireAnswer> {
  const isGroup = form === 'group' && claim.mode === 'exclusive' && claim.waiterTtlMs === 0
  const list = form === 'list' ? [claim, claimOn(unique('other'))] : [isGroup ? { ...claim, group: 'g' } : claim]
  const [answer] = await driver.acquire(list, newCall())
  if (answer === undefined || answer instanceof Error) throw answer ?? new Error('no answer')
  return answer
}

async function release(lease: LeaseRef, form: Form, other: LeaseRef): Promise<unknown> {
  const [released] = await driver.release(form === 'list' ? [lease, other] : [lease])
  return released
}

/** Without tokens, and times only roughly. Which one of several readers is named is not defined. */
function comparable(answer: AcquireAnswer, plainOf: (text: string) => string): unknown {
  if (answer.granted) return 'granted'
  const { holder, ahead, askAgainMs } = answer
  const named = holder?.mode === 'exclusive' ? plainOf(holder.claimId) : holder?.mode
  return { named, ahead, askAgain: askAgainMs === undefined ? undefined : Math.ceil(askAgainMs / 50_000) }
}

const TIGHT: RateLimit = { limit: 10, periodMs: 3_600_000, burst: 10 }
const LOOSE: RateLimit = { limit: 1_000_000, periodMs: 3_600_000, burst: 1_000_000 }

/** Mostly steps; now and then a change. */
const CHANGES: readonly [undefined, ...(RateChange | undefined)[]] = [
  undefined,
  undefined,
  undefined,
  undefined,
  'reset',
  { blockMs: 3_600_000 },
]

async function ratesWith(seed: number, limits: readonly RateLimit[]): Promise<unknown[]> {
  const random = seededRandom(seed)
  const name = unique('rate')
  const answers: unknown[] = []
  for (let step = 0; step < 30; step += 1) {
    const change = random.pick<RateChange | undefined>(CHANGES)
    const cost = change === undefined ? random.whole(0, 3) : 0
    const request = { name, cost, limits, ...(change !== undefined && { change }) } as const
    const [answer] = (await driver.consume?.([request])) ?? []
    if (answer === undefined || answer instanceof Error) throw answer ?? new Error('no answer')
    const { allowed, remaining, blockedMs } = answer
    answers.push({ allowed, remaining, isBlocked: blockedMs !== undefined })
    // A block would refuse all later steps.
    if (typeof change === 'object') await driver.consume?.([{ ...request, change: { blockMs: 0 } }])
  }
  return answers
}
