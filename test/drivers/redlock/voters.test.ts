import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { beforeEach, describe, it } from 'vitest'
import type { Claim, Driver, Renewal } from '../../../src/core/driver.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { shiftedClock } from '../../harness/clock-shim.ts'
import { until } from '../../harness/processes.ts'
import type { FaultProxy } from '../../harness/proxy.ts'
import {
  all,
  claim,
  client,
  clockAhead,
  granted,
  nodesOn,
  proxies,
  redlock,
  untilGranted,
  untilTokens,
  untilVoting,
} from '../../harness/redlock-nodes.ts'
import { type Server, startRedis } from '../../harness/servers.ts'

const TTL_MS = 1_000
const LONG_MS = 4_000

/** A node that may have forgotten leases must not vote until the longest of them would have ended. */
describe('redlock: voters', () => {
  const servers = (): Server[] => all.slice(0, 3)
  const second = (): Server => all[1] as Server
  const third = (): FaultProxy => proxies[2] as FaultProxy
  const onThree = (options = {}): Driver =>
    redlock({
      nodes: nodesOn(proxies.slice(0, 3)),
      persistent: false,
      longestTtlSeconds: TTL_MS / 1_000,
      nodeTimeoutSeconds: 5,
      ...options,
    })

  beforeEach(async () => {
    await Promise.all(
      servers().map(async ({ port }) => {
        const probe = client(port)
        await probe.flushall()
        // The data that the server starts with.
        await probe.save()
        probe.disconnect()
      }),
    )
  })

  /** With the data from before the lock was granted. */
  async function restartWithoutLock(lockName: string): Promise<void> {
    const probe = client(second().port)
    const held = await probe.getdel(`lock:${lockName}`)
    await probe.save()
    await probe.set(`lock:${lockName}`, held as string, 'PX', 2 * TTL_MS)
    await restart(second())
  }

  /** Two of three nodes have the lease. The third never receives it. */
  async function grantOnTwo(driver: Driver, ttlMs = TTL_MS) {
    third().blackHole()
    const held = claim({ ttlMs })
    const sentMs = performance.now()
    const grant = await granted(driver, held)
    third().heal()
    return { held, grant, sentMs }
  }

  for (const [how, forget] of [
    ['was flushed', () => client(second().port).flushall()],
    [
      'lost the lock and the record of its voting by eviction',
      (lockName: string) => client(second().port).del('holdfast:voter', `lock:${lockName}`),
    ],
    ['restarted empty (failure 16)', () => restart(second())],
    ['restarted with an older snapshot', restartWithoutLock],
    [
      'restarted with an older snapshot and was first asked by a client of another database',
      async (lockName: string) => {
        await restartWithoutLock(lockName)
        const [answer] = await onThree({ nodes: nodesOn(servers(), { db: 1 }) }).acquire(
          [claim({ ttlMs: 100 })],
          newCall(),
        )
        assert.match(String(answer), /does not vote/)
      },
    ],
    [
      'restarted with an older snapshot and could not write when it was first asked',
      async (lockName: string) => {
        await restartWithoutLock(lockName)
        const probe = client(second().port)
        await probe.config('SET', 'min-replicas-to-write', '1')
        await onThree().acquire([claim({ ttlMs: 100 })], newCall())
        const refused = async () => (await probe.info('errorstats')).includes('NOREPLICAS')
        await until(refused, { timeoutMs: 5_000, failure: () => 'it was not asked' })
        await probe.config('SET', 'min-replicas-to-write', '0')
      },
    ],
  ] as const) {
    it(`a node that ${how} does not vote until the longest time to live has passed`, async () => {
      // A restart takes some of this time.
      const ttlMs = how.startsWith('restarted') ? 2 * TTL_MS : TTL_MS
      const options = { longestTtlSeconds: ttlMs / 1_000 }
      const driver = onThree(options)
      await untilVoting(driver, servers())
      const { held, sentMs } = await grantOnTwo(driver, ttlMs)
      await forget(held.lockName)
      await untilGranted(onThree(options), claim({ lockName: held.lockName, ttlMs }))
      const apartMs = performance.now() - sentMs
      assert.ok(apartMs >= ttlMs, `two holders: granted again after ${apartMs} ms`)
    })
  }

  it('failure 59: a node that fails over to a lagging replica does not vote for the longest time to live', async () => {
    await using replica = await startRedis()
    const promoted = client(replica.port)
    await promoted.replicaof('127.0.0.1', second().port)
    const driver = onThree()
    await untilVoting(driver, servers())
    const synced = async () =>
      (await promoted.get('holdfast:voter')) === (await client(second().port).get('holdfast:voter'))
    await until(synced, { timeoutMs: 10_000, failure: () => 'the replica has no voter' })
    // From here on it lags. It has run for longer than the longest lease when it is promoted.
    await promoted.replicaof('NO', 'ONE')
    await sleep(TTL_MS + 1_000) // so that its uptime, in full seconds, is above the longest time to live
    const { held, sentMs } = await grantOnTwo(driver)
    const proxy = proxies[1] as FaultProxy
    try {
      proxy.redirect(replica.port)
      proxy.cut()
      await untilGranted(onThree(), claim({ lockName: held.lockName, ttlMs: TTL_MS }))
    } finally {
      proxy.redirect(second().port)
      proxy.cut()
    }
    const apartMs = performance.now() - sentMs
    assert.ok(apartMs >= TTL_MS, `two holders: granted again after ${apartMs} ms`)
  })

  for (const [how, startedMs] of [
    ['behind, so that its uptime is an hour', -3_600_000],
    ['ahead, so that its uptime is negative', 3_600_000],
  ] as const) {
    it(`failure 60: a node that restarted with a clock ${how} is silent for the longest time to live`, async () => {
      using clock = await shiftedClock()
      await using server = await startRedis({ clock })
      const longestMs = 2 * TTL_MS
      const driver = redlock({ nodes: nodesOn([server]), persistent: false, longestTtlSeconds: longestMs / 1_000 })
      await untilVoting(driver, [server])
      await client(server.port).save()
      clock.shift(startedMs)
      await restart(server)
      clock.shift(0)
      const startMs = performance.now()
      await untilVoting(driver, [server])
      const silentMs = performance.now() - startMs
      assert.ok(silentMs >= longestMs * 0.95, `it voted after ${silentMs} ms`)
    })
  }

  it('failure 61: a lease that a quorum renews is written again where it is missing', async () => {
    const driver = onThree({ longestTtlSeconds: LONG_MS / 1_000 })
    await untilVoting(driver, servers(), LONG_MS)
    const { held, grant } = await grantOnTwo(driver, LONG_MS)
    const lease = { ...held, fencingToken: grant.fencingToken }
    await untilTokens(servers(), held, [grant.fencingToken, grant.fencingToken, undefined])
    assert.deepEqual(await driver.renew([lease]), ['renewed'])
    await untilTokens(servers(), held, [grant.fencingToken, grant.fencingToken, grant.fencingToken])
    // From now on the third node counts.
    await all[0]?.pause()
    assert.deepEqual(await driver.renew([lease]), ['renewed'])
    all[0]?.resume()
    assert.deepEqual(await driver.release([lease]), [true])
    await untilTokens(servers(), held, [undefined, undefined, undefined])
  })

  it('failure 61: no lease is written on a node that is silent, or has another lease', async () => {
    const driver = onThree()
    await untilVoting(driver, servers())
    const { held, grant } = await grantOnTwo(driver)
    const lease = { ...held, fencingToken: grant.fencingToken }
    const rival = claim({ lockName: held.lockName, ttlMs: TTL_MS })
    const [refused] = await driver.acquire([rival], newCall())
    assert.ok(refused !== undefined && 'granted' in refused && !refused.granted)
    const node = client((all[2] as Server).port)
    const taken = JSON.stringify([rival.claimId, 1, 1, 60_000, 'h'])
    await node.set(`lock:${held.lockName}`, taken, 'PX', 60_000)
    assert.deepEqual(await driver.renew([lease]), ['renewed'])
    await sleep(100) // for what the driver may send
    assert.equal(await node.get(`lock:${held.lockName}`), taken)
    // It has forgotten everything, and is silent.
    await node.flushall()
    assert.deepEqual(await driver.renew([lease]), ['renewed'])
    await sleep(100) // for what the driver may send
    assert.equal(await node.exists(`lock:${held.lockName}`), 0)
    const repaired = async () => {
      assert.deepEqual(await driver.renew([lease]), ['renewed'])
      return (await node.exists(`lock:${held.lockName}`)) === 1
    }
    await until(repaired, { timeoutMs: 10_000, failure: () => 'it was not repaired after the silence' })
    await driver.release([lease])
  })

  it('failure 61: a lease is repaired by a driver that did not get it, as in a heartbeat thread', async () => {
    const options = { longestTtlSeconds: LONG_MS / 1_000 }
    const driver = onThree(options)
    await untilVoting(driver, servers(), LONG_MS)
    const writer = claim({ ttlMs: LONG_MS })
    const reader = claim({ ttlMs: LONG_MS, mode: 'shared', metadata: { for: 'readers' } })
    const leases: Renewal[] = []
    for (const { lockName, claimId, ...held } of [writer, reader]) {
      const { fencingToken } = await granted(driver, { lockName, claimId, ...held })
      leases.push({ lockName, claimId, fencingToken, ttlMs: LONG_MS })
    }
    const kept = (): Promise<unknown[]> => Promise.all(servers().map((server) => textsOn(server, writer, reader)))
    const before = await kept()
    await forgetLeases(servers()[2] as Server, [writer, reader])
    const renewing = onThree(options)
    assert.deepEqual(await renewing.renew(leases), ['renewed', 'renewed'])
    await until(async () => !(await textsOn(servers()[2] as Server, writer, reader)).includes(null), {
      timeoutMs: LONG_MS,
      failure: () => 'the leases were not written again',
    })
    assert.deepEqual(await kept(), before)
    // A release that overtakes the repair leaves nothing behind.
    await forgetLeases(servers()[2] as Server, [writer, reader])
    const releasing = onThree(options)
    await releasing.inspect({ lockName: writer.lockName }) // until connections are there
    const last = proxies[1] as FaultProxy
    last.hold('toClient')
    const renewed = releasing.renew(leases)
    await sleep(100) // until the node that lacks the leases has answered
    last.release('toClient')
    assert.deepEqual(await renewed, ['renewed', 'renewed'])
    assert.deepEqual(await releasing.release(leases), [true, true])
    await sleep(100) // for what the driver may send
    assert.deepEqual(await kept(), [MISSING, MISSING, MISSING])
  })

  it('failure 61: a lease is repaired although its driver has been refused 10,000 claims since', async () => {
    const options = { longestTtlSeconds: LONG_MS / 1_000 }
    const driver = onThree(options)
    await untilVoting(driver, servers(), LONG_MS)
    const held = claim({ ttlMs: LONG_MS })
    const { fencingToken } = await granted(driver, held)
    const lease = { ...held, fencingToken }
    for (let round = 0; round <= 100; round += 1) {
      const rivals = Array.from({ length: 100 }, () => claim({ lockName: held.lockName, ttlMs: TTL_MS }))
      await driver.acquire(rivals, newCall())
      if (round % 10 === 0) assert.deepEqual(await driver.renew([lease]), ['renewed'])
    }
    await forgetLeases(servers()[2] as Server, [held])
    assert.deepEqual(await driver.renew([lease]), ['renewed'])
    await untilTokens(servers(), held, [fencingToken, fencingToken, fencingToken])
    assert.deepEqual(await driver.release([lease]), [true])
  })

  it('SCRIPT FLUSH alone does not silence a node', async () => {
    const driver = onThree()
    await untilVoting(driver, servers())
    await Promise.all(servers().map(({ port }) => client(port).script('FLUSH')))
    const held = claim({ ttlMs: TTL_MS })
    const { fencingToken } = await granted(driver, held)
    await untilTokens(servers(), held, [fencingToken, fencingToken, fencingToken])
  })

  it('the first clients of a node agree on when it began to vote, and no later one changes it', async () => {
    const options = { longestTtlSeconds: 30 }
    const drivers = Array.from({ length: 8 }, () => onThree(options))
    const voters = () => Promise.all(servers().map(({ port }) => client(port).get('holdfast:voter')))
    const ask = (driver: Driver) => driver.acquire([claim({ ttlMs: 100 })], newCall())
    for (const [answer] of await Promise.all(drivers.map(ask))) {
      assert.ok(answer instanceof Error)
      assert.match(answer.message, /node \d: it does not vote for another \d+ s, because it may have forgotten leases/)
    }
    // An answer needs two of the nodes.
    const isWritten = (voter: string | null): boolean => /^\d+ 30000 \w+$/.test(voter ?? '')
    await until(async () => (await voters()).every(isWritten), {
      timeoutMs: 5_000,
      failure: () => 'a node has no voter',
    })
    const first = await voters()
    await ask(onThree(options))
    assert.deepEqual(await voters(), first)
  })

  it('a node uses the longest time to live of all its clients', async () => {
    const short = onThree({ longestTtlSeconds: 0.5 })
    await untilVoting(short, servers(), 500)
    const [long] = await onThree({ longestTtlSeconds: 36_000 }).acquire([claim()], newCall())
    assert.ok(long instanceof Error)
    assert.match(long.message, /does not vote for another (3\d{4})/)
    const [answer] = await short.acquire([claim({ ttlMs: 100 })], newCall())
    assert.ok(answer instanceof Error, 'a client with short leases lets a node vote that may have forgotten long ones')
    assert.match(answer.message, /does not vote for another (3\d{4})/)
  })

  it('a client with persistent: true does not make nodes vote for a client without it', async () => {
    await granted(redlock({ nodes: nodesOn(proxies.slice(0, 3)) }), claim())
    const [answer] = await onThree().acquire([claim({ ttlMs: 100 })], newCall())
    assert.ok(answer instanceof Error, 'nodes have voted although they may have forgotten leases')
  })

  it('tokens rise although one node was emptied and another missed the last token', async () => {
    await untilVoting(onThree(), servers())
    const ahead = onThree({ clock: clockAhead(10_000) })
    const { held, grant } = await grantOnTwo(ahead)
    await ahead.release([{ ...held, fencingToken: grant.fencingToken }])
    await restart(second())
    await untilVoting(onThree(), servers())
    // The answer of the node that remembers comes too late.
    proxies[0]?.hold('toClient')
    const behind = onThree({ clock: clockAhead(-10_000) })
    for (const driver of [behind, onThree()]) {
      const next = claim({ lockName: held.lockName, ttlMs: TTL_MS })
      const { fencingToken } = await granted(driver, next)
      const fellMs = (grant.fencingToken - fencingToken) / 1_000
      assert.ok(fellMs < 0, `the token fell by ${fellMs} ms`)
      await driver.release([{ ...next, fencingToken }])
    }
  })

  for (const [when, inTime] of [
    ['named a higher mark is not enough: the token goes above it', true],
    ['names a higher mark later is taken, and the client’s next token goes above it', false],
  ] as const) {
    it(`a quorum without a node that ${when}`, async () => {
      const nodes = () => nodesOn(proxies.slice(0, 3))
      const ahead = redlock({ nodes: nodes(), clock: clockAhead(10_000) })
      const { held, grant } = await grantOnTwo(ahead)
      await ahead.release([{ ...held, fencingToken: grant.fencingToken }])
      // This node forgets in spite of persistent: true. Only the first node remembers the token now.
      await client(second().port).flushall()
      const driver = redlock({ nodes: nodes(), nodeTimeoutSeconds: 10 })
      await granted(driver, claim())
      const held2 = claim({ lockName: held.lockName })
      for (const proxy of inTime ? proxies.slice(1, 3) : proxies.slice(0, 1)) proxy.hold('toClient')
      const asked = driver.acquire([held2], newCall())
      await sleep(300) // for the answers that are not delayed
      for (const proxy of proxies) proxy.release('toClient')
      const [answer] = await asked
      assert.ok(answer && 'granted' in answer && answer.granted)
      await sleep(50) // for the delayed answer
      await driver.release([{ ...held2, fencingToken: answer.fencingToken }])
      const next = await granted(driver, claim({ lockName: held.lockName }))
      assert.ok(next.fencingToken > grant.fencingToken, 'the next token is below one that the client has been told of')
      if (inTime) assert.ok(answer.fencingToken > grant.fencingToken, 'the token fell')
    })
  }

  it('a client whose clock is wrong by a day is granted the lock, with correct tokens', async () => {
    await untilVoting(onThree(), servers())
    for (const wrongMs of [86_400_000, -86_400_000]) {
      const held = claim({ ttlMs: TTL_MS })
      const driver = onThree({ clock: clockAhead(wrongMs) })
      const { fencingToken } = await granted(driver, held)
      const aheadMs = fencingToken / 1_000 - Date.now()
      assert.ok(aheadMs < TTL_MS / 4 + 50, `its token is ${aheadMs} ms ahead`)
      await driver.release([{ ...held, fencingToken }])
    }
  })

  it('a node whose mark is too far ahead for the others does not keep them from granting', async () => {
    using clock = await shiftedClock()
    clock.shift(7_200_000)
    await using fast = await startRedis({ clock })
    const nodes = () => nodesOn([...all.slice(0, 2), fast])
    const lockName = claim().lockName
    // Two hours ahead: the fast node grants the first proposal, the others answer with their time.
    const ahead = redlock({ nodes: nodes(), clock: clockAhead(7_200_000) })
    const first = claim({ lockName })
    const { fencingToken } = await granted(ahead, first)
    await ahead.release([{ ...first, fencingToken }])
    await untilTokens([fast], first, [undefined])
    assert.ok(Number(await counterOf(fast)) > (Date.now() + 3_600_000) * 1_000, 'the fast node has no mark to speak of')
    const next = await granted(redlock({ nodes: nodes() }), claim({ lockName }))
    assert.ok(next.fencingToken > fencingToken)
    assert.ok(next.fencingToken < (Date.now() + 3_600_000) * 1_000, 'they have followed it')
  })

  it('a node whose clock was set back is silent only for the longest time to live', async () => {
    using clock = await shiftedClock()
    clock.shift(3_600_000)
    await using server = await startRedis({ clock })
    const driver = redlock({ nodes: nodesOn([server]), persistent: false, longestTtlSeconds: 0.5 })
    await untilVoting(driver, [server], 500)
    clock.shift(0)
    const [answer] = await driver.acquire([claim({ ttlMs: 100 })], newCall())
    assert.ok(answer instanceof Error)
    await untilVoting(driver, [server], 500)
  })
})

async function restart(server: Server): Promise<void> {
  await server.kill()
  await server.restart()
}

async function counterOf(server: Server): Promise<string | null> {
  const probe = client(server.port)
  const [key] = await probe.keys('holdfast:{*}:token')
  return probe.get(key as string)
}

/** What the server has of an exclusive and of a shared lease, without the times of its clock. */
async function textsOn({ port }: { port: number }, writer: Claim, reader: Claim): Promise<readonly unknown[]> {
  const probe = client(port)
  const texts = [
    await probe.get(`lock:${writer.lockName}`),
    await probe.hget(`holdfast:{lock:${reader.lockName}}:d`, `l"${reader.claimId}"`),
  ]
  return texts.map((text) => text && (JSON.parse(text) as unknown[]).toSpliced(2, 1))
}

const MISSING = [null, null]

async function forgetLeases({ port }: { port: number }, claims: readonly Claim[]): Promise<void> {
  const keys = claims.flatMap(({ lockName }) => {
    const plain = `lock:${lockName}`
    return [plain, `holdfast:{${plain}}:d`, `holdfast:{${plain}}:o`]
  })
  await client(port).del(...keys)
}
