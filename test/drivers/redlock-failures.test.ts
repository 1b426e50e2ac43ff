import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { afterAll, afterEach, beforeAll, describe, it } from 'vitest'
import type { Claim, Driver, Grant } from '../../src/core/driver.ts'
import { redisDriver } from '../../src/drivers/redis.ts'
import { openRedlock, type RedlockNodeError, type RedlockOptions, redlockDriver } from '../../src/drivers/redlock.ts'
import type { RedisDriver } from '../../src/drivers/support/redis-driver.ts'
import { DistributedLock } from '../../src/index.ts'
import { until } from '../harness/processes.ts'
import { type FaultProxy, startProxy } from '../harness/proxy.ts'
import { type Server, startServers } from '../harness/servers.ts'
import { startWorker } from '../harness/worker.ts'

let all: Server[] = []
let proxies: FaultProxy[] = []
let stop: (() => Promise<void>) | undefined
let counter = 0
const clients: Redis[] = []

beforeAll(async () => {
  const started = await startServers({ redis: 5 })
  all = started.redis
  stop = started.stop
  proxies = await Promise.all(all.map(({ port }) => startProxy(port)))
})

afterAll(async () => {
  for (const client of clients) client.disconnect()
  await Promise.all(proxies.map((proxy) => proxy.close()))
  await stop?.()
})

afterEach(healAll)

/** One after the other: each test hurts the same five servers. */
describe('redlock: failures', () => {
  it('a quorum below the majority is refused, one above it is not', () => {
    const nodes = nodesOn(all)
    for (const quorum of [0, 1, 2, 2.5, 6]) {
      assert.throws(() => redlockDriver({ nodes, quorum }), { code: 'INVALID_ARGUMENT', argument: 'quorum' })
    }
    for (const quorum of [3, 4, 5]) redlockDriver({ nodes, quorum })
    assert.throws(
      () => redlockDriver({ nodes: nodes.slice(0, 4), quorum: 2 }),
      /a majority of the 4 nodes \(3\) or more/,
    )
    assert.throws(() => redlockDriver({ nodes: [] }), { argument: 'nodes' })
  })

  it('limits and rates are refused with the reason', async () => {
    const driver = redlock()
    const [answer] = await driver.acquire([claim({ mode: 'shared', limit: 3 })])
    assert.ok(answer instanceof Error)
    assert.match(answer.message, /majorities do not preserve a count/)
    assert.equal(driver.consume, undefined)
  })

  for (const [how, hurt] of [
    ['killed', (index: number) => (all[index] as Server).kill()],
    ['hung', (index: number) => (all[index] as Server).pause()],
    ['behind a black hole', async (index: number) => (proxies[index] as FaultProxy).blackHole()],
  ] as const) {
    it(`${how === 'killed' ? '' : 'failure 26: '}with 2 of 5 nodes ${how}, acquire waits for the quorum, not for them`, async () => {
      const driver = redlock({ nodes: nodesOn(proxies), nodeTimeoutSeconds: 3 })
      await cycle(driver) // connections and scripts are there
      const healthyMs = await medianMs(driver)
      for (const index of [1, 3]) await hurt(index)
      await sleep(50) // for the clients to notice what can be noticed
      const hurtMs = await medianMs(driver)
      // A bound that a loaded machine keeps, and that anybody who waits for a node's deadline breaks by far.
      assert.ok(hurtMs <= healthyMs * 1.5 + 20, `${hurtMs} ms, ${healthyMs} ms when all are well`)
    })
  }

  it('with 3 of 5 down it fails within its deadline, and says which node failed how', async () => {
    const driver = redlock({ nodeTimeoutSeconds: 0.5 })
    await cycle(driver)
    await (all[0] as Server).kill()
    await (all[2] as Server).pause()
    await (all[4] as Server).pause()
    const startedMs = performance.now()
    const [answer] = await driver.acquire([claim()])
    assert.ok(performance.now() - startedMs < 3_000)
    assert.ok(answer instanceof Error)
    assert.match(answer.message, /redlock could not acquire: 2 of 5 nodes answered, 3 are needed/)
    assert.match(
      answer.message,
      /node 1: redis failed to acquire: .+; node 3: no answer within 500 ms; node 5: no answer within 500 ms/,
    )
  })

  it('onNodeError is told which node failed how, although the others are enough', async () => {
    const failures: RedlockNodeError[] = []
    const driver = redlock({ nodeTimeoutSeconds: 0.5, onNodeError: (failure) => failures.push(failure) })
    await cycle(driver)
    await (all[1] as Server).kill()
    await (all[3] as Server).pause()
    const held = claim()
    const { fencingToken } = await granted(driver, held)
    const told = (node: string, how: RegExp): boolean =>
      failures.some((failure) => failure.node === node && how.test(failure.error.message))
    const both = (): boolean => told('node 2', /redis failed to/) && told('node 4', /no answer within 500 ms/)
    await until(both, { timeoutMs: 5_000, failure: () => `it was told ${failures.map(({ error }) => error.message)}` })
    failures.length = 0
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    const ofNews = (): boolean => told('node 2', /redis failed to tell of a release/)
    await until(ofNews, {
      timeoutMs: 5_000,
      failure: () => `it was told ${failures.map(({ error }) => error.message)}`,
    })
    assert.ok(failures.every(({ node }) => node === 'node 2' || node === 'node 4'))
  })

  it('failure 16: a node that restarted empty does not vote until the longest ttl has passed', async () => {
    const three = all.slice(0, 3)
    const options = { nodes: nodesOn(three), longestTtlSeconds: 4, persistent: false }
    const driver = redlock(options)
    // These servers have just been started themselves: wait until each of them votes.
    await until(
      async () => {
        const probe = claim({ ttlMs: 1_000 })
        await driver.acquire([probe])
        const held = await Promise.all(three.map(({ port }) => client(port).exists(`lock:${probe.lockName}`)))
        return held.every((count) => count === 1)
      },
      { timeoutMs: 15_000, failure: () => 'not all of them vote' },
    )
    const held = claim({ ttlMs: 4_000 })
    // The holder has two of three; the third one never heard of it.
    await (three[2] as Server).pause()
    const first = await granted(driver, held)
    await (three[1] as Server).kill()
    await (three[1] as Server).restart()
    ;(three[2] as Server).resume()
    const rival = redlock({ ...options, nodes: nodesOn(three) })
    const [answer] = await rival.acquire([claim({ lockName: held.lockName, ttlMs: 1_000 })])
    assert.ok(
      !(answer !== undefined && 'granted' in answer && answer.granted),
      'two of three granted it, one of them after losing it',
    )
    const second = await untilGranted(rival, claim({ lockName: held.lockName, ttlMs: 1_000 }))
    assert.ok(second.fencingToken > first.fencingToken)
    assert.ok(
      (second.fencingToken - first.fencingToken) / 1_000 >= 3_900,
      'it was granted before the first lease was over',
    )
  })

  it('a time to live above the longest is refused before anything is sent', async () => {
    const driver = redlock({ longestTtlSeconds: 4, persistent: false })
    const [answer] = await driver.acquire([claim({ ttlMs: 4_001 })])
    assert.ok(answer instanceof Error)
    assert.match(answer.message, /timeoutSeconds must be at most .*longestTtlSeconds \(4\)/)
  })

  it('seconds that are none are refused, in a URL too', async () => {
    for (const seconds of [Number.NaN, 0, -1, Number.POSITIVE_INFINITY, '60' as never]) {
      for (const argument of ['longestTtlSeconds', 'nodeTimeoutSeconds']) {
        assert.throws(() => redlock({ [argument]: seconds }), { code: 'INVALID_ARGUMENT', argument })
      }
    }
    const url = `redlock://127.0.0.1:${(all[0] as Server).port}?longestTtlSeconds=soon`
    await assert.rejects(openRedlock(url), { argument: 'longestTtlSeconds' })
  })

  it('a renewal above the longest time to live is refused before it is sent, and the others are renewed', async () => {
    const [long, short] = [claim(), claim()]
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

  it('a client that trusts every node does not let it vote for one that does not', async () => {
    const held = claim()
    const lax = redlock()
    const { fencingToken } = await granted(lax, held)
    await lax.release([{ ...held, fencingToken }])
    const [answer] = await redlock({ persistent: false, longestTtlSeconds: 36_000 }).acquire([claim()])
    assert.ok(answer instanceof Error, 'nodes that have just started have voted')
    assert.match(answer.message, /does not vote for another/)
  })

  it('a second round on nodes that know the ballot script alone does not end its own grant', async () => {
    const three = all.slice(0, 3)
    for (const { port } of three) await client(port).script('FLUSH')
    const lockName = name()
    await granted(redlock({ nodes: nodesOn(three) }), claim({ lockName, ttlMs: 50 }))
    await sleep(100) // it ran out, so nobody has released anything yet
    const behind = redlock({ nodes: nodesOn(three), clock: clockAhead(-60_000) })
    await granted(behind, claim({ lockName }))
    await sleep(50) // for whatever is still under way
    const held = await Promise.all(three.map(({ port }) => client(port).exists(`lock:${lockName}`)))
    assert.ok(held.filter((count) => count === 1).length >= 2, `granted, and held on ${held}`)
  })

  it('a node that votes after the release has passed it does not keep the lease', async () => {
    const [slow, late] = [all[2] as Server, proxies[2] as FaultProxy]
    const driver = redlock({ nodes: nodesOn(proxies.slice(0, 3)) })
    await cycle(driver)
    // The node knows the script of the release, and not the ballot's.
    await client(slow.port).script('FLUSH')
    await nodesOn([slow])[0]?.release([claim()])
    late.hold('toClient')
    const held = claim()
    const { fencingToken } = await granted(driver, held)
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    await sleep(50) // for the release to pass the node
    late.release('toClient')
    await sleep(200) // for the ballot to come again, in full
    await untilFree(held.lockName)
  })

  it('a late vote for another token than the granted one is given back on its node', async () => {
    const [slow, late] = [all[2] as Server, proxies[2] as FaultProxy]
    const driver = redlock({ nodes: nodesOn(proxies.slice(0, 3)) })
    await cycle(driver)
    const held = claim()
    // What a try before this one has left on the node, because its release never arrived.
    const left = await granted(nodesOn([slow])[0] as RedisDriver, held)
    late.hold('toClient')
    const { fencingToken } = await granted(driver, held)
    assert.notEqual(fencingToken, left.fencingToken)
    late.release('toClient')
    await untilOnly(held.lockName, 2)
    assert.equal(await client(slow.port).exists(`lock:${held.lockName}`), 0)
    assert.deepEqual(await driver.renew([{ ...held, fencingToken }]), ['renewed'])
  })

  it('whatever anybody publishes on the channel of releases is passed over', async () => {
    const driver = redlock()
    const woken: string[] = []
    const stopListening = await driver.listen?.({
      wake: (lockName) => woken.push(lockName),
      granted() {},
      lost() {},
      deaf: () => assert.fail('deaf'),
    })
    const { port } = all[0] as Server
    for (const text of ['hello', 'null', '[1]', '{"0":"x"}', '"x"', '["real","claim"]']) {
      await client(port).publish('holdfast:released', text)
    }
    await until(() => woken.length > 0, { timeoutMs: 5_000, failure: () => 'the real one was not heard' })
    assert.deepEqual(woken, ['real'])
    await stopListening?.()
  })

  it('in a split vote nobody is named as the holder, and it is asked again at once', async () => {
    const lockName = name()
    const rival = claim({ lockName })
    for (const node of nodesOn(all.slice(0, 2))) await granted(node, rival)
    const driver = redlock({ nodes: nodesOn(all.slice(0, 4)) })
    for (let turn = 0; turn < 5; turn += 1) {
      const [split] = await driver.acquire([claim({ lockName, waitMs: 5_000 })])
      assert.ok(split && 'granted' in split && !split.granted)
      assert.equal(split.holder, undefined, 'half of the nodes count as a holder')
      assert.ok((split.askAgainMs ?? 1_000) <= 40, `asked again after ${split.askAgainMs} ms`)
      await untilOnly(lockName, 2)
    }
  })

  it('failure 17: a minority that was taken is given back on all nodes, when the vote fails and when the caller gives up', async () => {
    const driver = redlock({ nodes: nodesOn(proxies), nodeTimeoutSeconds: 0.3 })
    await cycle(driver)
    const held = claim()
    for (const index of [0, 1, 2]) (proxies[index] as FaultProxy).hold('toServer')
    const [failed] = await driver.acquire([held])
    assert.ok(failed instanceof Error)
    for (const index of [0, 1, 2]) (proxies[index] as FaultProxy).release('toServer')
    await untilFree(held.lockName)

    const lock = new DistributedLock({ driver })
    const [lockName, abort] = [name(), new AbortController()]
    for (const index of [0, 1, 2]) (proxies[index] as FaultProxy).hold('toClient')
    const aborted = lock.acquire(lockName, { signal: abort.signal, blockingTimeoutSeconds: 10 })
    await sleep(50) // for the request to be under way
    abort.abort()
    await assert.rejects(aborted, { code: 'ABORTED' })
    for (const index of [0, 1, 2]) (proxies[index] as FaultProxy).release('toClient')
    await untilFree(lockName)
    await lock.close()
  })

  it('failure 11: when the replies of a majority are lost, asking again is granted, and nothing is left behind', async () => {
    const driver = redlock({ nodes: nodesOn(proxies) })
    await cycle(driver)
    const held = claim()
    const lost = proxies.slice(0, 3).map((proxy) => proxy.cutAfterForwarding(JSON.stringify(held.claimId)))
    const [failed] = await driver.acquire([held])
    assert.ok(failed instanceof Error, 'three of five have answered')
    await Promise.all(lost)
    const { fencingToken } = await untilGranted(driver, held)
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    await untilFree(held.lockName)
  })

  it('failure 20: SCRIPT FLUSH on every node between operations goes unnoticed', async () => {
    const driver = redlock()
    const flush = () => Promise.all(all.map(({ port }) => client(port).script('FLUSH')))
    const held = claim()
    await flush()
    const { fencingToken } = await granted(driver, held)
    await flush()
    assert.deepEqual(await driver.renew([{ ...held, fencingToken }]), ['renewed'])
    await flush()
    assert.equal((await driver.inspect({ lockName: held.lockName })).leases.length, 1)
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
  })

  it('failure 29: a waiter whose subscriptions were killed on every node listens again, and is woken by the next release', async () => {
    const [a, b] = [new DistributedLock({ driver: redlock() }), new DistributedLock({ driver: redlock() })]
    const lockName = name()
    const held = await a.hold(lockName, { timeoutSeconds: 60 })
    const waiting = b.hold(lockName, { timeoutSeconds: 60, blockingTimeoutSeconds: 30 })
    await untilListening(5)
    for (const { port } of all) await client(port).call('CLIENT', 'KILL', 'TYPE', 'pubsub')
    await untilListening(5)
    const releasedMs = performance.now()
    await held.release()
    await (await waiting).release()
    assert.ok(performance.now() - releasedMs < 10_000, 'it was not woken')
    await Promise.all([a.close(), b.close()])
  })

  it('a split vote of an even number of nodes settles: rivals that keep asking all get their turn', async () => {
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

  it('failure 6: a client whose clock is far behind or absurdly far ahead still gets tokens that rise', async () => {
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

  it('failure 18: tokens rise over thousands of grants from 8 processes, while a minority at a time is killed and flushed', async () => {
    const workers = await Promise.all(
      Array.from({ length: 8 }, () => startWorker({ source: GRANTS }, { callTimeoutMs: 50_000 })),
    )
    const urls = all.map(({ url }) => url)
    const [data] = (await startServers({ redis: 1 })).redis as [Server]
    const working = Promise.all(workers.map((worker) => worker.call('grants', urls, data.url, 1_250)))
    let hurts = 0
    const hurting = (async () => {
      for (let over = false; !over; hurts += 1) {
        const server = all[hurts % 5] as Server
        if (hurts % 2 === 0)
          await client(server.port)
            .flushall()
            .catch(() => {})
        else {
          await server.kill()
          await server.restart()
        }
        over = await Promise.race([working.then(() => true), sleep(300, false)])
      }
    })()
    const counts = (await working) as { written: number; stale: number }[]
    await hurting
    const written = counts.reduce((sum, each) => sum + each.written, 0)
    assert.ok(hurts >= 2 && written >= 9_000, `${written} written, hurt ${hurts} times`)
    const seen = client(data.port)
    for (const key of await seen.keys('seen:*')) {
      const tokens = (await seen.lrange(key, 0, -1)).map(Number)
      tokens.forEach((token, at) => {
        assert.ok(at === 0 || token > (tokens[at - 1] as number), `${key}: ${token} after ${tokens[at - 1]}`)
      })
    }
    await Promise.all(workers.map((worker) => worker.kill()))
    await data[Symbol.asyncDispose]()
  }, 60_000)

  it('redlock: and its hosts open a driver', async () => {
    const hosts = all.map(({ port }) => `127.0.0.1:${port}`).join(',')
    const driver = await openRedlock(`redlock://${hosts}?persistent=1&prefix=mine:`)
    const held = claim()
    const { fencingToken } = await granted(driver, held)
    assert.equal(await client((all[0] as Server).port).exists(`mine:${held.lockName}`), 1)
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    await driver.close()
    await assert.rejects(driver.acquire([held]), { code: 'CLOSED' })
  })
})

const GRANTS = `
  import { Redis } from 'ioredis'
  import { redisDriver, redisFence } from 'holdfast/drivers/redis'
  import { redlockDriver } from 'holdfast/drivers/redlock'
  const open = (url) => new Redis(url, { retryStrategy: () => 20, maxRetriesPerRequest: 0, commandTimeout: 5_000 }).on('error', () => {})
  const PUSH = "redis.call('RPUSH', KEYS[1], ARGV[1]) return 1"
  let claims = 0
  expose({
    async grants(urls, dataUrl, wanted) {
      const driver = redlockDriver({ nodes: urls.map((url) => redisDriver({ client: open(url), onWarning() {} })), persistent: true })
      const fence = redisFence({ client: new Redis(dataUrl) })
      let [granted, written, stale] = [0, 0, 0]
      while (granted < wanted) {
        // Names of its own most of the time, so that eight processes do not only refuse each other; and one for all.
        const list = Array.from({ length: 25 }, (_, name) => ({
          lockName: name === 0 ? 'for all' : process.pid + ' name ' + name, claimId: process.pid + '.' + ++claims, holderId: 'h',
          mode: 'exclusive', permits: 1, ttlMs: 10_000, waitMs: 0,
        }))
        const answers = await driver.acquire(list)
        const got = list.map((claim, at) => ({ ...claim, fencingToken: answers[at].fencingToken })).filter(({ fencingToken }) => fencingToken)
        granted += got.length
        const writes = await Promise.allSettled(got.map(({ lockName, fencingToken }) =>
          fence.run(PUSH, { token: fencingToken, keys: ['seen:' + lockName], args: [String(fencingToken)] })))
        for (const write of writes) {
          if (write.status === 'fulfilled') written += 1
          else if (write.reason.code === 'STALE_TOKEN') stale += 1
          else throw write.reason
        }
        await driver.release(list)
      }
      return { written, stale }
    },
  })
`

function client(port: number): Redis {
  const opened = new Redis(port, { commandTimeout: 10_000, retryStrategy: () => 20, maxRetriesPerRequest: 0 })
  opened.on('error', () => {})
  clients.push(opened)
  return opened
}

const nodesOn = (servers: readonly { readonly port: number }[]) =>
  servers.map(({ port }) => redisDriver({ client: client(port) }))

const redlock = (options: Partial<RedlockOptions> = {}): Driver =>
  redlockDriver({ nodes: options.nodes ?? nodesOn(all), persistent: true, ...options })

async function healAll(): Promise<void> {
  for (const proxy of proxies) proxy.heal()
  for (const server of all) server.resume()
  await Promise.all(all.map(restartIfDown))
}

async function restartIfDown(server: Server): Promise<void> {
  const probe = client(server.port)
  const answer = await probe.ping().catch(() => undefined)
  probe.disconnect()
  if (answer === undefined) await server.restart()
}

const name = (): string => `redlock:${process.pid}:${++counter}`

function claim(changes: Partial<Claim> = {}): Claim {
  const claimId = `claim ${++counter} of ${process.pid}`
  const plain = { mode: 'exclusive', permits: 1, ttlMs: 30_000, waitMs: 0 } as const
  return { lockName: name(), claimId, holderId: 'h', ...plain, ...changes }
}

async function granted(driver: Driver, of: Claim): Promise<Grant> {
  const [answer] = await driver.acquire([of])
  if (answer === undefined || answer instanceof Error) throw answer
  assert.ok(answer.granted, JSON.stringify(answer))
  return answer
}

async function untilGranted(driver: Driver, of: Claim): Promise<Grant> {
  let got: Grant | undefined
  const look = async (): Promise<boolean> => {
    const [answer] = await driver.acquire([of])
    if (answer !== undefined && 'granted' in answer && answer.granted) got = answer
    return got !== undefined
  }
  await until(look, { timeoutMs: 15_000, failure: () => 'waited in vain for a grant' })
  return got as Grant
}

async function cycle(driver: Driver): Promise<void> {
  const held = claim()
  const { fencingToken } = await granted(driver, held)
  await driver.release([{ ...held, fencingToken }])
}

async function medianMs(driver: Driver): Promise<number> {
  const times: number[] = []
  for (let turn = 0; turn < 15; turn += 1) {
    const startedMs = performance.now()
    await cycle(driver)
    times.push(performance.now() - startedMs)
  }
  return times.toSorted((x, y) => x - y)[7] as number
}

/** So many nodes have somebody who listens for releases. */
const untilListening = (count: number): Promise<void> =>
  until(
    async () => {
      const heard = await Promise.all(all.map(({ port }) => client(port).call('PUBSUB', 'NUMSUB', 'holdfast:released')))
      return heard.filter((each) => Number((each as unknown[])[1]) > 0).length >= count
    },
    { timeoutMs: 10_000, failure: () => `nobody listens on ${count} nodes` },
  )

const untilFree = (lockName: string): Promise<void> =>
  until(
    async () => {
      const probes = all.map(({ port }) => client(port))
      const held = await Promise.all(probes.map((probe) => probe.exists(`lock:${lockName}`)))
      for (const probe of probes) probe.disconnect()
      return held.every((count) => count === 0)
    },
    { timeoutMs: 10_000, failure: () => `"${lockName}" was never given back everywhere` },
  )

/** What a lost vote has left behind is gone. */
const untilOnly = (lockName: string, count: number): Promise<void> =>
  until(
    async () => {
      const held = await Promise.all(all.map(({ port }) => client(port).exists(`lock:${lockName}`)))
      return held.filter((each) => each === 1).length === count
    },
    { timeoutMs: 5_000, failure: () => `"${lockName}" is not on ${count} nodes` },
  )

const clockAhead = (ms: number) => ({
  now: () => ({ monotonicMs: performance.now(), wallMs: Date.now() + ms }),
  setTimer: () => ({ cancel: () => {} }),
})
