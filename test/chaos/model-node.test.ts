import assert from 'node:assert/strict'
import fc from 'fast-check'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import {
  alive,
  EMPTY_NODE,
  type NodeState,
  type Proposal,
  release,
  renew,
  repair,
  vote,
} from '../../chaos/model/node.ts'
import type { Claim } from '../../src/core/driver.ts'
import type { RedlockNode } from '../../src/drivers/redis/driver.ts'
import { slotCounter, slotOf, VOTER } from '../../src/drivers/redis/keys.ts'
import { proposalsOf, REPAIRS } from '../../src/drivers/redis/proposals.ts'
import { redisDriver } from '../../src/drivers/redis.ts'
import { type ShiftedClock, shiftedClock } from '../harness/clock-shim.ts'
import { type Server, startRedis } from '../harness/servers.ts'

/**
 * The model's node and the scripts decide the same, in random histories on real servers whose clock the test moves.
 * There are two, because a node that fails over goes on as another server, with another run_id.
 * `SEED=` replays a history.
 */
const HISTORIES = Number(process.env['HISTORIES'] ?? 40)
const SEED = Number(process.env['SEED'] ?? 5)

let clock: ShiftedClock
let servers: readonly Server[]
let runs: readonly Run[]
beforeAll(async () => {
  clock = await shiftedClock()
  servers = await Promise.all([startRedis({ clock }), startRedis({ clock })])
  runs = await Promise.all(
    servers.map(async ({ url }) => {
      const control = new Redis(url)
      const runId = /run_id:(\w+)/.exec(await control.info('server'))?.[1] as string
      return { control, runId, node: redisDriver({ client: control, onWarning() {} }) as RedlockNode }
    }),
  )
})
afterAll(async () => {
  for (const { control, node } of runs) {
    await node.close()
    control.disconnect()
  }
  await Promise.all(servers.map((server) => server[Symbol.asyncDispose]()))
  clock[Symbol.dispose]()
})

describe("the model's node", () => {
  it('votes, renews, repairs, releases and is silent as the scripts do, in random histories', async () => {
    const replies = new Map<string, number>()
    const property = fc.asyncProperty(
      fc.array(steps, { minLength: 10, maxLength: 40, size: 'max' }),
      async (history) => {
        const play = new Play(replies)
        await Promise.all(runs.map(({ control }) => control.flushall()))
        for (const step of history) await play.step(step)
      },
    )
    await fc.assert(property, { numRuns: HISTORIES, seed: SEED, endOnFailure: true })
    const kinds = ['granted', 'already', 'refused', 'below the mark', 'too far ahead', 'silent', 'renewed', 'ended']
    const repairs = ['granted', 'already', 'refused', 'below the mark', 'silent', 'below a mark that stays']
    const all = [...kinds, ...repairs.map((kind) => `repair: ${kind}`), 'silent after a failover']
    assert.deepEqual([...replies.keys()].sort(), all.toSorted(), 'every kind of answer occurs')
  }, 120_000)
})

const claim = fc.nat({ max: 2 })
const steps = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({ kind: fc.constant('propose' as const), claim, token: fc.nat({ max: 8 }) }),
  },
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant('repair' as const), claim, token: fc.nat({ max: 8 }) }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('renew' as const), claim, own: fc.boolean() }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('release' as const), claim, own: fc.boolean() }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('pass' as const), tens: fc.integer({ min: 1, max: 4 }) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('forget' as const) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('copy' as const) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('failover' as const) }) },
)
type Step = typeof steps extends fc.Arbitrary<infer T> ? T : never

/** A server from its start on. */
interface Run {
  readonly control: Redis
  readonly runId: string
  readonly node: RedlockNode
}

/** What a replica or a backup has. */
interface Copy {
  readonly model: NodeState
  readonly keys: readonly { readonly key: string; readonly value: string; readonly endMs: number | undefined }[]
}

/** One node, which is one server after the other, and the model of it. */
class Play {
  readonly #replies: Map<string, number>
  #run = runs[0] as Run
  #model: NodeState = EMPTY_NODE
  #copy: Copy = { model: EMPTY_NODE, keys: [] }

  constructor(replies: Map<string, number>) {
    this.#replies = replies
  }

  async step(step: Step): Promise<void> {
    if (step.kind === 'pass') {
      shiftMs += step.tens * 10_000
      clock.shift(shiftMs)
    } else if (step.kind === 'forget') {
      await this.#run.control.flushall()
      this.#model = EMPTY_NODE
    } else if (step.kind === 'copy') {
      this.#copy = { model: this.#model, keys: await storedOn(this.#run.control) }
    } else if (step.kind === 'failover') {
      await this.#failOver()
    } else if (step.kind === 'propose' || step.kind === 'repair') {
      await this.#propose(step.kind, `claim ${step.claim}`, step.token)
    } else {
      await this.#end(step.kind, `claim ${step.claim}`, step.own)
    }
    await this.#compare()
  }

  /** The other server takes over, with the data of the copy. */
  async #failOver(): Promise<void> {
    this.#run = runs.find((run) => run !== this.#run) as Run
    this.#model = this.#copy.model
    const { control } = this.#run
    await control.flushall()
    for (const { key, value, endMs } of this.#copy.keys) {
      if (endMs === undefined) await control.set(key, value)
      else await control.set(key, value, 'PXAT', endMs)
    }
  }

  async #propose(kind: 'propose' | 'repair', claimId: string, choice: number): Promise<void> {
    const { control, node: driver, runId } = this.#run
    const prefix = kind === 'repair' ? 'repair: ' : ''
    const beforeUs = await nowUs(control)
    const { mark, lease, voter } = this.#model
    const token = [
      mark - 1,
      mark,
      mark + 1,
      mark + MOST_STEP,
      mark + MOST_STEP + 1,
      beforeUs,
      beforeUs + MAX_AHEAD_US - 3_000_000,
      beforeUs + MAX_AHEAD_US + 3_000_000,
      lease?.token ?? beforeUs,
    ][choice] as number
    const proposal: Proposal = {
      claimId,
      token: Math.max(token, 1),
      ttlMs: TTL_MS,
      maxAheadUs: MAX_AHEAD_US,
      longestMs: TTL_MS,
    }
    const claim: Claim = {
      lockName: NAME,
      claimId,
      holderId: 'h',
      mode: 'exclusive',
      permits: 1,
      ttlMs: TTL_MS,
      waiterTtlMs: 0,
    }
    const [answer] = await driver
      .propose(
        proposalsOf([{ lockName: NAME, claim, token: proposal.token }], {
          maxAheadUs: kind === 'repair' ? REPAIRS : MAX_AHEAD_US,
          longestTtlMs: TTL_MS,
        }),
      )
      .catch((error: Error) => [error])
    const afterMs = (await nowUs(control)) / 1_000
    const isNow = (ms: number): boolean => ms >= Math.floor(beforeUs / 1_000) && ms <= afterMs
    const decide = kind === 'repair' ? repair : vote
    const { node, reply } = decide(this.#model, { nowUs: beforeUs, runId }, proposal)
    this.#model = node
    if ('silentMs' in reply) {
      this.#count(`${prefix}silent`)
      if (voter !== undefined && voter.runId !== runId) this.#count('silent after a failover')
      assert.match(String(answer), /does not vote/)
      return
    }
    assert.ok(answer !== undefined && !(answer instanceof Error), String(answer))
    if ('tokenRefused' in reply) {
      this.#count(`${prefix}${reply.mark === undefined ? 'too far ahead' : 'below the mark'}`)
      assert.ok('tokenRefused' in answer && isNow(answer.nowMs), JSON.stringify(answer))
      assert.equal(answer.mark, reply.mark)
    } else if (!reply.granted) {
      this.#count(`${prefix}refused`)
      assert.ok('granted' in answer && !answer.granted && isNow(answer.answeredAtMs ?? 0), JSON.stringify(answer))
      assert.equal(answer.holder?.claimId, node.lease?.claimId)
    } else {
      const isOld =
        lease?.claimId === claimId && lease.token === proposal.token && lease.acquiredAtMs === reply.acquiredAtMs
      this.#count(`${prefix}${isOld ? 'already' : 'granted'}`)
      if (!isOld && node.mark > proposal.token) this.#count('repair: below a mark that stays')
      assert.ok('granted' in answer && answer.granted, JSON.stringify(answer))
      assert.equal(answer.fencingToken, reply.fencingToken)
      if (isOld) assert.equal(answer.acquiredAtMs, reply.acquiredAtMs)
      else assert.ok(isNow(answer.acquiredAtMs))
      // The model cannot know the millisecond in which the server did it.
      const { lease: fresh } = node
      if (fresh) this.#model = { ...node, lease: { ...fresh, acquiredAtMs: answer.acquiredAtMs } }
    }
  }

  async #end(kind: 'renew' | 'release', claimId: string, own: boolean): Promise<void> {
    const { control, node: driver } = this.#run
    const nowMs = Math.floor((await nowUs(control)) / 1_000)
    const { lease } = this.#model
    const fencingToken = (own && lease?.token) || 1
    const ref = { lockName: NAME, claimId, fencingToken }
    if (kind === 'renew') {
      const { node, isRenewed } = renew(this.#model, nowMs, { claimId, token: fencingToken, ttlMs: TTL_MS })
      assert.deepEqual(await driver.renew([{ ...ref, ttlMs: TTL_MS }]), [isRenewed ? 'renewed' : 'lost'])
      this.#model = node
      if (isRenewed) this.#count('renewed')
    } else {
      const { node, isEnded } = release(this.#model, nowMs, { claimId, token: fencingToken })
      assert.deepEqual(await driver.release([ref]), [isEnded])
      this.#model = node
      if (isEnded) this.#count('ended')
    }
  }

  /** The server has stored what the model has. */
  async #compare(): Promise<void> {
    const { control } = this.#run
    const nowMs = (await nowUs(control)) / 1_000
    const { lease, mark } = alive(this.#model, nowMs)
    const stored = await control.get(`lock:${NAME}`)
    assert.deepEqual(
      stored === null ? undefined : (JSON.parse(stored) as unknown[]).slice(0, 3),
      lease && [lease.claimId, lease.token, lease.acquiredAtMs],
    )
    if (lease !== undefined) {
      const leftMs = await control.pttl(`lock:${NAME}`)
      assert.ok(Math.abs(nowMs + leftMs - lease.endMs) < SLACK_MS, `${nowMs + leftMs} instead of ${lease.endMs}`)
    }
    const voter = (await control.get(VOTER))?.split(' ')
    const { voter: expected } = this.#model
    assert.equal(voter === undefined, expected === undefined)
    if (voter !== undefined && expected !== undefined) {
      const sinceMs = Number(voter[0])
      assert.ok(Math.abs(sinceMs - expected.sinceMs) < SLACK_MS, `since ${sinceMs} instead of ${expected.sinceMs}`)
      assert.deepEqual([Number(voter[1]), voter[2]], [expected.longestMs, expected.runId])
      const drift = (sinceMs - expected.sinceMs) * 1_000
      // The least mark follows from the millisecond in which the server was first asked.
      const isLeast = mark === (expected.sinceMs + expected.longestMs / 2) * 1_000
      this.#model = { ...this.#model, voter: { ...expected, sinceMs }, mark: isLeast ? mark + drift : mark }
    }
    assert.equal(Number((await control.get(COUNTER)) ?? 0), this.#model.mark)
  }

  #count(kind: string): void {
    this.#replies.set(kind, (this.#replies.get(kind) ?? 0) + 1)
  }
}

async function storedOn(control: Redis): Promise<Copy['keys']> {
  const atMs = (await nowUs(control)) / 1_000
  const keys = await Promise.all(
    [`lock:${NAME}`, VOTER, COUNTER].map(async (key) => {
      const [value, leftMs] = await Promise.all([control.get(key), control.pttl(key)])
      return value === null ? [] : [{ key, value, endMs: leftMs < 0 ? undefined : Math.floor(atMs + leftMs) }]
    }),
  )
  return keys.flat()
}

async function nowUs(control: Redis): Promise<number> {
  const [seconds, us] = (await control.time()) as unknown as [string, string]
  return Number(seconds) * 1_000_000 + Number(us)
}

const NAME = 'modelled'
const COUNTER = slotCounter(slotOf(`lock:${NAME}`))
/** Not a multiple of the steps of the clock: nothing ends within five seconds of a step. */
const TTL_MS = 25_000
const SLACK_MS = 4_000
/** Less than the distance of a bound to the tokens that are proposed near it. */
const MAX_AHEAD_US = (TTL_MS * 1_000) / 4
const MOST_STEP = 10_000
let shiftMs = 0
