import assert from 'node:assert/strict'
import fc from 'fast-check'
import { Redis } from 'ioredis'
import { afterAll, beforeAll, describe, it } from 'vitest'
import { alive, EMPTY_NODE, type NodeState, type Proposal, release, renew, vote } from '../../chaos/model/node.ts'
import type { Claim } from '../../src/core/driver.ts'
import type { RedlockNode } from '../../src/drivers/redis/driver.ts'
import { slotCounter, slotOf, VOTER } from '../../src/drivers/redis/keys.ts'
import { proposalsOf } from '../../src/drivers/redis/proposals.ts'
import { redisDriver } from '../../src/drivers/redis.ts'
import { type ShiftedClock, shiftedClock } from '../harness/clock-shim.ts'
import { type Server, startRedis } from '../harness/servers.ts'

/**
 * The model's node and the scripts decide the same, in random histories on a real server whose clock the test moves.
 * `SEED=` replays a history.
 */
const HISTORIES = Number(process.env['HISTORIES'] ?? 40)
const SEED = Number(process.env['SEED'] ?? 5)

let clock: ShiftedClock
let server: Server
let control: Redis
beforeAll(async () => {
  clock = await shiftedClock()
  server = await startRedis({ clock })
  control = new Redis(server.url)
})
afterAll(async () => {
  control.disconnect()
  await server[Symbol.asyncDispose]()
  clock[Symbol.dispose]()
})

describe("the model's node", () => {
  it('votes, renews, releases and is silent as the scripts do, in random histories', async () => {
    const replies = new Map<string, number>()
    const property = fc.asyncProperty(
      fc.array(steps, { minLength: 10, maxLength: 40, size: 'max' }),
      async (history) => {
        const node = redisDriver({ client: control, onWarning() {} }) as RedlockNode
        const play = new Play(node, replies)
        await control.flushall()
        for (const step of history) await play.step(step)
        await node.close()
      },
    )
    await fc.assert(property, { numRuns: HISTORIES, seed: SEED, endOnFailure: true })
    const kinds = ['granted', 'already', 'refused', 'below the mark', 'too far ahead', 'silent', 'renewed', 'ended']
    assert.deepEqual([...replies.keys()].sort(), kinds.toSorted(), 'every kind of answer occurs')
  }, 120_000)
})

const claim = fc.nat({ max: 2 })
const steps = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({ kind: fc.constant('propose' as const), claim, token: fc.nat({ max: 8 }) }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('renew' as const), claim, own: fc.boolean() }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('release' as const), claim, own: fc.boolean() }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant('pass' as const), tens: fc.integer({ min: 1, max: 4 }) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('forget' as const) }) },
)
type Step = typeof steps extends fc.Arbitrary<infer T> ? T : never

/** One server, and the model of it. */
class Play {
  readonly #node: RedlockNode
  readonly #replies: Map<string, number>
  #model: NodeState = EMPTY_NODE

  constructor(node: RedlockNode, replies: Map<string, number>) {
    this.#node = node
    this.#replies = replies
  }

  async step(step: Step): Promise<void> {
    if (step.kind === 'pass') {
      shiftMs += step.tens * 10_000
      clock.shift(shiftMs)
    } else if (step.kind === 'forget') {
      await control.flushall()
      this.#model = EMPTY_NODE
    } else if (step.kind === 'propose') {
      await this.#propose(`claim ${step.claim}`, step.token)
    } else {
      await this.#end(step.kind, `claim ${step.claim}`, step.own)
    }
    await this.#compare()
  }

  async #propose(claimId: string, choice: number): Promise<void> {
    const beforeUs = await nowUs()
    const { mark, lease } = this.#model
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
    const [answer] = await this.#node
      .propose(
        proposalsOf([{ lockName: NAME, claim, token: proposal.token }], {
          maxAheadUs: MAX_AHEAD_US,
          longestTtlMs: TTL_MS,
        }),
      )
      .catch((error: Error) => [error])
    const afterMs = (await nowUs()) / 1_000
    const isNow = (ms: number): boolean => ms >= Math.floor(beforeUs / 1_000) && ms <= afterMs
    const { node, reply } = vote(this.#model, { nowUs: beforeUs, runId: RUN }, proposal)
    this.#model = node
    if ('silentMs' in reply) {
      this.#count('silent')
      assert.match(String(answer), /does not vote/)
      return
    }
    assert.ok(answer !== undefined && !(answer instanceof Error), String(answer))
    if ('tokenRefused' in reply) {
      this.#count(reply.mark === undefined ? 'too far ahead' : 'below the mark')
      assert.ok('tokenRefused' in answer && isNow(answer.nowMs), JSON.stringify(answer))
      assert.equal(answer.mark, reply.mark)
    } else if (!reply.granted) {
      this.#count('refused')
      assert.ok('granted' in answer && !answer.granted && isNow(answer.answeredAtMs ?? 0), JSON.stringify(answer))
      assert.equal(answer.holder?.claimId, node.lease?.claimId)
    } else {
      const isOld =
        lease?.claimId === claimId && lease.token === proposal.token && lease.acquiredAtMs === reply.acquiredAtMs
      this.#count(isOld ? 'already' : 'granted')
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
    const nowMs = Math.floor((await nowUs()) / 1_000)
    const { lease } = this.#model
    const fencingToken = (own && lease?.token) || 1
    const ref = { lockName: NAME, claimId, fencingToken }
    if (kind === 'renew') {
      const { node, isRenewed } = renew(this.#model, nowMs, { claimId, token: fencingToken, ttlMs: TTL_MS })
      assert.deepEqual(await this.#node.renew([{ ...ref, ttlMs: TTL_MS }]), [isRenewed ? 'renewed' : 'lost'])
      this.#model = node
      if (isRenewed) this.#count('renewed')
    } else {
      const { node, isEnded } = release(this.#model, nowMs, { claimId, token: fencingToken })
      assert.deepEqual(await this.#node.release([ref]), [isEnded])
      this.#model = node
      if (isEnded) this.#count('ended')
    }
  }

  /** The server has stored what the model has. */
  async #compare(): Promise<void> {
    const nowMs = (await nowUs()) / 1_000
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
      assert.equal(Number(voter[1]), expected.longestMs)
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

async function nowUs(): Promise<number> {
  const [seconds, us] = (await control.time()) as unknown as [string, string]
  return Number(seconds) * 1_000_000 + Number(us)
}

const NAME = 'modelled'
const COUNTER = slotCounter(slotOf(`lock:${NAME}`))
const RUN = 'run'
/** Not a multiple of the steps of the clock: nothing ends within five seconds of a step. */
const TTL_MS = 25_000
const SLACK_MS = 4_000
/** Less than the distance of a bound to the tokens that are proposed near it. */
const MAX_AHEAD_US = (TTL_MS * 1_000) / 4
const MOST_STEP = 10_000
let shiftMs = 0
