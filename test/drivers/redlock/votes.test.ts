import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { Cluster, type Redis } from 'ioredis'
import { describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import type { Clock } from '../../../src/core/time/clock.ts'
import { slotCounter, slotOf } from '../../../src/drivers/redis/keys.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { openRedlock, redlockDriver } from '../../../src/drivers/redlock.ts'
import { DistributedLock } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import {
  all,
  claim,
  client,
  clockAhead,
  cycle,
  granted,
  name,
  nodesOn,
  redlock,
  untilOnly,
  untilTokens,
} from '../../harness/redlock-nodes.ts'
import type { Server } from '../../harness/servers.ts'

/**
 * Proposals to the nodes, and the decision of their votes. Not concurrent: all tests use the same five servers.
 */
describe('redlock: votes', () => {
  it('a quorum below the majority is refused, a larger one is not', () => {
    const nodes = nodesOn(all)
    for (const quorum of [0, 1, 2, 2.5, 6]) {
      assert.throws(() => redlockDriver({ nodes, quorum }), { code: 'INVALID_ARGUMENT', argument: 'quorum' })
    }
    for (const quorum of [3, 4, 5]) redlockDriver({ nodes, quorum })
    assert.throws(
      () => redlockDriver({ nodes: nodes.slice(0, 4), quorum: 2 }),
      /from the majority \(3\) to all 4 nodes/,
    )
    assert.throws(() => redlockDriver({ nodes: [] }), { argument: 'nodes' })
  })

  it('a Cluster is refused as a node', () => {
    const cluster = new Cluster([{ host: '127.0.0.1', port: 1 }], { lazyConnect: true })
    const nodes = [...nodesOn(all.slice(0, 2)), redisDriver({ client: cluster })]
    assert.throws(() => redlockDriver({ nodes }), /nodes must be single servers.*node 3 is a Redis Cluster/)
  })

  it('limits and rates are refused with the reason', async () => {
    const driver = redlock()
    const [answer] = await driver.acquire([claim({ mode: 'shared', limit: 3 })], newCall())
    assert.ok(answer instanceof Error)
    assert.match(answer.message, /majorities do not preserve a count/)
    assert.equal(driver.consume, undefined)
  })

  it('a time to live above the longest is refused before anything is sent', async () => {
    const driver = redlock({ longestTtlSeconds: 4, persistent: false })
    const [answer] = await driver.acquire([claim({ ttlMs: 4_001 })], newCall())
    assert.ok(answer instanceof Error)
    assert.match(answer.message, /timeoutSeconds must be at most .*longestTtlSeconds \(4\)/)
  })

  it('invalid seconds are refused, in a URL too', async () => {
    for (const seconds of [Number.NaN, 0, -1, Number.POSITIVE_INFINITY, '60' as never]) {
      for (const argument of ['longestTtlSeconds', 'nodeTimeoutSeconds']) {
        assert.throws(() => redlock({ [argument]: seconds }), { code: 'INVALID_ARGUMENT', argument })
      }
    }
    const url = `redlock://127.0.0.1:${(all[0] as Server).port}?longestTtlSeconds=soon`
    await assert.rejects(openRedlock(url), /longestTtlSeconds/)
  })

  it('a renewal above the longest time to live is refused before it is sent, and the others are renewed', async () => {
    const [long, short] = [claim({ ttlMs: 30_000 }), claim({ ttlMs: 30_000 })]
    const tokens = [await granted(redlock(), long), await granted(redlock(), short)]
    const driver = redlock({ longestTtlSeconds: 40, persistent: false })
    const [refused, renewed] = await driver.renew([
      { ...long, ttlMs: 60_000, fencingToken: tokens[0]?.fencingToken as number },
      { ...short, ttlMs: 40_000, fencingToken: tokens[1]?.fencingToken as number },
    ])
    assert.ok(refused instanceof Error)
    assert.match(refused.message, /longestTtlSeconds \(40\)/)
    assert.equal(renewed, 'renewed')
    const ends = await Promise.all(all.map(({ port }) => client(port).pttl(`lock:${long.lockName}`)))
    assert.ok(Math.max(...ends) <= 30_000, `renewed for ${ends} ms all the same`)
  })

  it('a second round on nodes that only know ballot.lua does not end its own grant', async () => {
    const three = all.slice(0, 3)
    for (const { port } of three) await client(port).script('FLUSH')
    const lockName = name()
    await granted(redlock({ nodes: nodesOn(three) }), claim({ lockName, ttlMs: 50 }))
    await sleep(100) // for the lease to expire without a release
    const behind = redlock({ nodes: nodesOn(three), clock: clockAhead(-60_000) })
    await granted(behind, claim({ lockName }))
    await sleep(50) // for messages that are still in flight
    const held = await Promise.all(three.map(({ port }) => client(port).exists(`lock:${lockName}`)))
    assert.ok(held.filter((count) => count === 1).length >= 2, `granted, and held on ${held}`)
  })

  it('a list of names in many slots, acquired and released, is two commands to each node', async () => {
    const driver = redlock()
    const probes = all.map(({ port }) => client(port))
    await cycle(driver) // So that the nodes know the scripts.
    await sleep(50) // for answers that are still in flight
    const calls = (): Promise<number[]> => Promise.all(probes.map(scriptCalls))
    const before = await calls()
    const [turns, length] = [20, 100]
    for (let turn = 0; turn < turns; turn += 1) {
      const held = Array.from({ length }, () => claim())
      const answers = await driver.acquire(held, newCall())
      assert.ok(answers.every((answer) => 'granted' in answer && answer.granted))
      // At once: the votes of the slower nodes are still in flight, and arrive after the release was sent.
      const released = await driver.release(held.map(({ lockName, claimId }) => ({ lockName, claimId })))
      assert.ok(released.every((answer) => answer === true))
    }
    await sleep(50) // for answers that are still in flight
    const after = await calls()
    assert.deepEqual(
      after.map((count, at) => (count - (before[at] as number)) / turns),
      all.map(() => 2),
    )
  })

  it('each name of a list gets its own answer', async () => {
    const nodes = nodesOn(all.slice(0, 3))
    const driver = redlock({ nodes })
    const [free, held, shared, read] = [claim(), claim(), claim({ mode: 'shared' }), claim()]
    const [first, second] = [claim({ lockName: `{${name()}}:1` }), claim()]
    const third = { ...second, lockName: first.lockName.replace(/1$/, '2') }
    const marked = claim()
    await granted(driver, { ...held, claimId: 'rival' })
    await granted(driver, { ...shared, claimId: 'another reader' })
    await granted(driver, { ...read, claimId: 'a reader', mode: 'shared' })
    const own = claim()
    const before = await granted(driver, own)
    const mark = (Date.now() + 60_000) * 1_000
    for (const { port } of all.slice(0, 3)) {
      await client(port).set(slotCounter(slotOf(`lock:${marked.lockName}`)), mark)
    }
    const answers = await driver.acquire([free, held, shared, read, first, third, own, marked], newCall())
    const said = answers.map((answer) =>
      'granted' in answer ? (answer.granted ? 'granted' : answer.holder?.claimId) : answer.message,
    )
    assert.deepEqual(said, ['granted', 'rival', 'granted', 'a reader', 'granted', 'granted', 'granted', 'granted'])
    const tokens = answers.map((answer) => ('fencingToken' in answer ? answer.fencingToken : 0))
    assert.equal(tokens[6], before.fencingToken, 'asking again is no new grant')
    assert.ok((tokens[7] as number) > mark, 'granted below the mark')
    for (const [at, each] of [free, first, third].entries()) {
      const token = tokens[[0, 4, 5][at] as number] as number
      await untilTokens(all.slice(0, 3), each, [token, token, token])
      const counter = slotCounter(slotOf(`lock:${each.lockName}`))
      const kept = Number(await client((all[0] as Server).port).get(counter))
      assert.ok(kept >= token, `the mark ${kept} is below the token ${token}`)
    }
  })

  it('a split vote names no holder, and the claim asks again after as long as the rival has stood', async () => {
    const lockName = name()
    const driver = redlock({ nodes: nodesOn(all.slice(0, 4)) })
    const asked = async (): Promise<number> => {
      const [split] = await driver.acquire([claim({ lockName, waiterTtlMs: 5_000 })], newCall())
      assert.ok(split && 'granted' in split && !split.granted)
      assert.equal(split.holder, undefined, 'half of the nodes count as a holder')
      await untilOnly(lockName, 2)
      return split.askAgainMs ?? Number.POSITIVE_INFINITY
    }
    const rival = claim({ lockName })
    const beganMs = performance.now()
    for (const node of nodesOn(all.slice(0, 2))) await granted(node, rival)
    const firstMs = await asked()
    const ageMs = performance.now() - beganMs
    assert.ok(firstMs <= ageMs + 42, `asked again after ${firstMs} ms, the rival is ${ageMs} ms old`)
    await sleep(1_100) // The rival has not released its votes for longer than a waiter ever pauses.
    const laterMs = await asked()
    assert.ok(laterMs >= 1_000 && laterMs <= 1_040, `asked again after ${laterMs} ms`)
  })

  it("waiters beside a dead claim's vote and a node that is down ask once a second", async () => {
    const two = all.slice(0, 2)
    const lockName = name()
    const dead = claim({ lockName, ttlMs: 20_000 })
    const [first] = nodesOn(two) as [Driver]
    const grant = await granted(first, dead)
    const nodes = [...two, { port: 1 }] // Nothing listens on port 1.
    const locks = Array.from({ length: 10 }, () => new DistributedLock({ driver: redlock({ nodes: nodesOn(nodes) }) }))
    const waiting = locks.map((lock) => lock.withLock(lockName, async () => {}, { blockingTimeoutSeconds: 30 }))
    await sleep(2_500) // The pauses grow to a second.
    const before = await scriptsRun(two)
    await sleep(2_000) // What is measured.
    const perSecond = ((await scriptsRun(two)) - before) / two.length / 2
    await first.release([{ ...dead, fencingToken: grant.fencingToken }])
    await Promise.all(waiting)
    await Promise.all(locks.map((lock) => lock.close()))
    // Each ask is a vote and the release of the votes that it got, seldom another round.
    assert.ok(perSecond <= 40, `10 waiters ran ${perSecond} scripts a second on each node`)
  })

  it('a split vote of an even number of nodes settles: all rivals get the lock in time', async () => {
    const four = all.slice(0, 4)
    const rivals = [0, 1, 2, 3].map(() => new DistributedLock({ driver: redlock({ nodes: nodesOn(four) }) }))
    const lockName = name()
    let inside = 0
    const turn = async (lock: DistributedLock): Promise<void> => {
      for (let round = 0; round < 5; round += 1) {
        const lease = await lock.hold(lockName, { blockingTimeoutSeconds: 15, timeoutSeconds: 10 })
        inside += 1
        assert.equal(inside, 1, 'two holders')
        await sleep(1) // a short job
        inside -= 1
        assert.equal(await lease.release(), true)
      }
    }
    await Promise.all(rivals.map(turn))
    await Promise.all(rivals.map((lock) => lock.close()))
  })

  it('failure 6: a client whose clock is far behind or far ahead still gets rising tokens', async () => {
    const lockName = name()
    let last = 0
    for (const aheadMs of [0, -86_400_000, 0, 86_400_000, 0]) {
      const driver = redlock({ clock: clockAhead(aheadMs) })
      const held = claim({ lockName })
      const { fencingToken } = await granted(driver, held)
      assert.ok(fencingToken > last, `${fencingToken} after ${last}`)
      assert.ok(fencingToken < (Date.now() + 3_600_000) * 1_000, 'a wrong clock has spoilt the tokens')
      last = fencingToken
      await driver.release([{ ...held, fencingToken }])
    }
  })

  it('a client whose clock was a day ahead returns to proposals by its own clock', async () => {
    let aheadMs = 0
    const clock: Clock = {
      ...clockAhead(0),
      now: () => ({ monotonicMs: performance.now(), wallMs: Date.now() + aheadMs }),
    }
    const driver = redlock({ clock })
    aheadMs = 86_400_000
    await cycle(driver)
    aheadMs = 0
    await cycle(driver)
    const beforeUs = Date.now() * 1_000
    const { fencingToken } = await granted(driver, claim())
    assert.ok(fencingToken >= beforeUs, `${(beforeUs - fencingToken) / 1_000_000} s behind`)
  })

  it('a redlock: URL opens a driver', async () => {
    const hosts = all.map(({ port }) => `127.0.0.1:${port}`).join(',')
    const driver = await openRedlock(`redlock://${hosts}?persistent=1&prefix=mine:`)
    const held = claim()
    const { fencingToken } = await granted(driver, held)
    assert.equal(await client((all[0] as Server).port).exists(`mine:${held.lockName}`), 1)
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    await driver.close()
    await assert.rejects(driver.acquire([held], newCall()), { code: 'CLOSED' })
  })
})

async function scriptCalls(probe: Redis): Promise<number> {
  const calls = /cmdstat_evalsha:calls=(\d+)/.exec(await probe.info('commandstats'))
  return Number(calls?.[1] ?? 0)
}

/** How many scripts these servers have run. */
async function scriptsRun(servers: readonly Server[]): Promise<number> {
  const counts = servers.map(async ({ port }) => {
    const probe = client(port)
    const stats = await probe.info('commandstats')
    probe.disconnect()
    const calls = [...stats.matchAll(/cmdstat_evalsha?:calls=(\d+)/g)].map(([, count]) => Number(count))
    return calls.reduce((sum, count) => sum + count, 0)
  })
  return (await Promise.all(counts)).reduce((sum, count) => sum + count, 0)
}
