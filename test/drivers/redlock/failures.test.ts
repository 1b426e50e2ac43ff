import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import type { RedlockNodeError } from '../../../src/drivers/redlock.ts'
import { DistributedLock } from '../../../src/index.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import type { FaultProxy } from '../../harness/proxy.ts'
import {
  all,
  claim,
  client,
  cycle,
  granted,
  name,
  nodesOn,
  proxies,
  redlock,
  untilFree,
  untilGranted,
} from '../../harness/redlock-nodes.ts'
import type { Server } from '../../harness/servers.ts'
import { startWorker } from '../../harness/worker.ts'

/** Not concurrent: all tests damage the same five servers. */
describe('redlock: failures', () => {
  it('claims of one process whose wait ends at the same moment all report contention', async () => {
    await using other = new DistributedLock({ driver: redlock() })
    await using lock = new DistributedLock({ driver: redlock() })
    const lockName = name()
    await other.hold(lockName)
    const claims = [1, 2, 3, 4].map(() => lock.acquire(lockName, { blockingTimeoutSeconds: 0.5 }))
    const ends = await Promise.allSettled(claims)
    assert.deepEqual(
      ends.map((end) => (end.status === 'fulfilled' ? end.value.acquired : end.reason)),
      [false, false, false, false],
    )
  })

  for (const [how, hurt] of [
    ['killed', (index: number) => (all[index] as Server).kill()],
    ['hung', (index: number) => (all[index] as Server).pause()],
    ['behind a black hole', async (index: number) => (proxies[index] as FaultProxy).blackHole()],
  ] as const) {
    const failure = how === 'killed' ? '' : 'failure 26: '
    it(`${failure}with 2 of 5 nodes ${how}, acquire waits only for the quorum`, async () => {
      const driver = redlock({ nodes: nodesOn(proxies), nodeTimeoutSeconds: 3 })
      await cycle(driver) // until connections and scripts are there
      for (const index of [1, 3]) await hurt(index)
      await sleep(50) // for the clients to notice it, if they can
      const hurtMs = await medianMs(driver)
      // A call that waits for a failed node takes three seconds. `npm run bench` measures the exact cost.
      assert.ok(hurtMs < 1_000, `${hurtMs} ms`)
    })
  }

  it('with 3 of 5 nodes down it fails within its deadline, with the error of each node', async () => {
    const driver = redlock({ nodeTimeoutSeconds: 1.5 })
    await cycle(driver)
    await (all[0] as Server).kill()
    await (all[2] as Server).pause()
    await (all[4] as Server).pause()
    const [answer] = await driver.acquire([claim()], newCall())
    assert.ok(answer instanceof Error)
    assert.match(answer.message, /redlock could not acquire: 3 of 5 nodes failed, 3 are needed/)
    assert.match(
      answer.message,
      /node 1: redis failed to .+; node 3: no answer within 1500 ms; node 5: no answer within 1500 ms/,
    )
  })

  it('onNodeError gets the node and its error, also if the others are a quorum', async () => {
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
    const ofRelease = (): boolean => told('node 2', /redis failed to release/)
    await until(ofRelease, {
      timeoutMs: 5_000,
      failure: () => `it was told ${failures.map(({ error }) => error.message)}`,
    })
    assert.ok(failures.every(({ node }) => node === 'node 2' || node === 'node 4'))
  })

  it('onNodeError gets the node that refused to publish a release, and the release succeeds', async () => {
    const failures: RedlockNodeError[] = []
    const driver = redlock({ onNodeError: (failure) => failures.push(failure) })
    const held = claim()
    const { fencingToken } = await granted(driver, held)
    const second = client((all[1] as Server).port)
    await second.call('ACL', 'SETUSER', 'default', 'resetchannels')
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    await until(() => failures.length > 0, { timeoutMs: 5_000, failure: () => 'it was told nothing' })
    await second.call('ACL', 'SETUSER', 'default', 'allchannels')
    const told = failures.map(({ node, error }) => `${node}: ${error.message}`)
    assert.deepEqual(told, ['node 2: the server refused to publish on holdfast:released'])
    await untilFree(held.lockName)
  })

  it('failure 47: onNodeError runs outside of any lock', async () => {
    let entered: Promise<boolean> | undefined
    const lockName = name()
    const driver = redlock({
      onNodeError() {
        entered ??= lock.acquire(lockName, { blocking: false }).then(({ acquired }) => acquired)
      },
    })
    await using lock = new DistributedLock({ driver })
    await lock.withLock(lockName, async () => {
      await (all[1] as Server).kill()
      await (await lock.hold(name())).release()
      await until(() => entered !== undefined, { timeoutMs: 5_000, failure: () => 'onNodeError was never called' })
      assert.equal(await entered, false, 'it entered the lock of the task that asked')
    })
  })

  it('failure 17: a minority of votes is released on all nodes, after a lost vote and after an abort', async () => {
    const driver = redlock({ nodes: nodesOn(proxies), nodeTimeoutSeconds: 1.5 })
    await cycle(driver)
    const held = claim()
    for (const index of [0, 1, 2]) (proxies[index] as FaultProxy).hold('toServer')
    const [failed] = await driver.acquire([held], newCall())
    assert.ok(failed instanceof Error)
    for (const index of [0, 1, 2]) (proxies[index] as FaultProxy).release('toServer')
    await untilFree(held.lockName)

    const lock = new DistributedLock({ driver })
    const [lockName, abort] = [name(), new AbortController()]
    for (const index of [0, 1, 2]) (proxies[index] as FaultProxy).hold('toClient')
    const aborted = lock.acquire(lockName, { signal: abort.signal, blockingTimeoutSeconds: 10 })
    await sleep(50) // for the request to be in flight
    abort.abort()
    await assert.rejects(aborted, { code: 'ABORTED' })
    for (const index of [0, 1, 2]) (proxies[index] as FaultProxy).release('toClient')
    await untilFree(lockName)
    await lock.close()
  })

  it('failure 11: after the replies of a majority were lost, asking again is granted, without leftovers', async () => {
    const driver = redlock({ nodes: nodesOn(proxies) })
    await cycle(driver)
    const held = claim()
    const lost = proxies.slice(0, 3).map((proxy) => proxy.cutAfterForwarding(JSON.stringify(held.claimId)))
    const [failed] = await driver.acquire([held], newCall())
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

  it('failure 29: a waiter whose subscriptions were killed is woken by the next release', async () => {
    const [a, b] = [new DistributedLock({ driver: redlock() }), new DistributedLock({ driver: redlock() })]
    const lockName = name()
    const held = await a.hold(lockName, { timeoutSeconds: 60 })
    const waiting = b.hold(lockName, { timeoutSeconds: 60, blockingTimeoutSeconds: 30 })
    await untilListening(5)
    for (const { port } of all) await client(port).call('CLIENT', 'KILL', 'TYPE', 'pubsub')
    // It may subscribe again while the last connections are still being killed. A quorum is enough for it.
    await untilListening(3)
    const releasedMs = performance.now()
    await held.release()
    await (await waiting).release()
    assert.ok(performance.now() - releasedMs < 10_000, 'it was not woken')
    await Promise.all([a.close(), b.close()])
  })

  it('failure 18: tokens rise over 2,000 grants with different clocks and a minority that loses data', async () => {
    // Nodes accept up to half a second ahead. The last client gets their time instead.
    const clocksAheadMs = [-400, 0, 400, 20_000]
    const workers = await Promise.all(
      clocksAheadMs.map(() => startWorker({ source: GRANTS }, { callTimeoutMs: 50_000 })),
    )
    const urls = all.map(({ url }) => url)
    const working = Promise.all(
      workers.map((worker, at) => worker.call('grants', { urls, wanted: 500, aheadMs: clocksAheadMs[at] })),
    ) as Promise<Granted[][]>
    let hurts = 0
    const hurting = (async () => {
      // A damaged node is silent for two seconds, so at most two of five are silent at a time.
      while (await Promise.race([working.then(() => false), sleep(hurts === 0 ? 100 : 1_100, true)])) {
        const server = all[hurts % 5] as Server
        hurts += 1
        if (hurts % 2 === 1) await client(server.port).flushall()
        else {
          await server.kill()
          await server.restart()
        }
      }
    })()
    const grants = (await working).flat()
    await hurting
    assert.ok(hurts >= 2 && grants.length >= 2_000, `${grants.length} granted, hurt ${hurts} times`)
    const names = new Set(grants.map(({ lockName }) => lockName))
    for (const lockName of names) assertRising(grants.filter((grant) => grant.lockName === lockName))
    await Promise.all(workers.map((worker) => worker.kill()))
  }, 60_000)
})

/** Times are of the monotonic clock of the machine, which all processes share. */
interface Granted {
  readonly lockName: string
  readonly token: number
  readonly askedMs: number
  readonly answeredMs: number
}

/** A grant that came before another request was sent has the smaller token. */
function assertRising(grants: readonly Granted[]): void {
  const answered = grants.toSorted((x, y) => x.answeredMs - y.answeredMs)
  const asked = grants.toSorted((x, y) => x.askedMs - y.askedMs)
  let [at, largest] = [0, 0]
  for (const { lockName, token, askedMs } of asked) {
    for (let before = answered[at]; before !== undefined && before.answeredMs < askedMs; before = answered[at]) {
      largest = Math.max(largest, before.token)
      at += 1
    }
    assert.ok(token > largest, `${lockName}: ${token} after ${largest}`)
  }
}

const GRANTS = `
  import { Redis } from 'ioredis'
  import { redisDriver } from 'holdfast/drivers/redis'
  import { redlockDriver } from 'holdfast/drivers/redlock'
  const open = (url) => {
    const client = new Redis(url, { retryStrategy: () => 20, maxRetriesPerRequest: 0, commandTimeout: 5_000 })
    return redisDriver({ client: client.on('error', () => {}), onWarning() {} })
  }
  const nowMs = () => Number(process.hrtime.bigint()) / 1e6
  const plain = { holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 2_000, waiterTtlMs: 0 }
  let claims = 0
  expose({
    async grants({ urls, wanted, aheadMs }) {
      const clock = {
        now: () => ({ monotonicMs: nowMs(), wallMs: Date.now() + aheadMs }),
        setTimer: () => ({ cancel() {} }),
      }
      const driver = redlockDriver({ nodes: urls.map(open), longestTtlSeconds: 2, clock })
      const granted = []
      while (granted.length < wanted) {
        const first = Math.floor(Math.random() * 30)
        const list = Array.from({ length: 10 }, (_, at) => ({
          ...plain,
          lockName: 'name ' + ((first + at) % 30),
          claimId: process.pid + '.' + ++claims,
        }))
        const askedMs = nowMs()
        const answers = await driver.acquire(list)
        const answeredMs = nowMs()
        const got = list.map(({ lockName, claimId }, at) => ({ lockName, claimId, token: answers[at].fencingToken }))
          .filter(({ token }) => token !== undefined)
        granted.push(...got.map(({ lockName, token }) => ({ lockName, token, askedMs, answeredMs })))
        await driver.release(got.map(({ lockName, claimId, token }) => ({ lockName, claimId, fencingToken: token })))
      }
      return granted
    },
  })
`

async function medianMs(driver: Driver): Promise<number> {
  const times: number[] = []
  for (let turn = 0; turn < 15; turn += 1) {
    const startedMs = performance.now()
    await cycle(driver)
    times.push(performance.now() - startedMs)
  }
  return times.toSorted((x, y) => x - y)[7] as number
}

/** Waits until this many nodes have a subscriber for releases. */
const untilListening = (count: number): Promise<void> =>
  until(
    async () => {
      const heard = await Promise.all(all.map(({ port }) => client(port).call('PUBSUB', 'NUMSUB', 'holdfast:released')))
      return heard.filter((each) => Number((each as unknown[])[1]) > 0).length >= count
    },
    { timeoutMs: 10_000, failure: () => `fewer than ${count} nodes have a subscriber` },
  )
