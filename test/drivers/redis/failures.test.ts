import assert from 'node:assert/strict'
import { describe, it, vi } from 'vitest'
import { type RedisWarning, redisDriver, redisFence } from '../../../src/drivers/redis.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { shiftedClock } from '../../harness/clock-shim.ts'
import { until } from '../../harness/processes.ts'
import { startProxy } from '../../harness/proxy.ts'
import {
  ask,
  claim,
  client,
  driverOn,
  granted,
  HOLDER,
  lockOn,
  name,
  pairOn,
  patience,
  shared,
  untilGranted,
} from '../../harness/redis-server.ts'
import { startRedis } from '../../harness/servers.ts'
import { startWorker } from '../../harness/worker.ts'

/**
 * Failures of locks on Redis, each provoked on real servers. Those that need no separate network or process are in the
 * conformance suite.
 */

describe.concurrent('redis: holders', () => {
  it('failure 1: a holder that was paused past its TTL knows it at once, and its write is refused', async () => {
    const lockName = name()
    await using worker = await startWorker({ source: HOLDER })
    const stale = Number(await worker.call('hold', shared.url, lockName, 1))
    await worker.pause()
    const rival = lockOn(shared.port)
    const lease = await rival.hold(lockName, { blockingTimeoutSeconds: 15 })
    assert.ok(lease.fencingToken > stale)
    const fence = redisFence({ client: client(shared.port) })
    await fence.set(`data:${lockName}`, 'rival', lease)
    worker.resume()
    assert.deepEqual(await worker.call('write', `data:${lockName}`, 'stale'), { held: false, error: 'STALE_TOKEN' })
    assert.equal(await client(shared.port).get(`data:${lockName}`), 'rival')
    await rival.close()
  })

  it('failure 4: if the server’s clock jumps forward, the second holder’s token fences off the first', async () => {
    using clock = await shiftedClock()
    await using server = await startRedis({ clock })
    const [a, b] = [driverOn(server.port), driverOn(server.port)]
    const lockName = name()
    const first = await granted(a, claim({ lockName }))
    clock.shift(3_600_000)
    const second = await granted(b, claim({ lockName }))
    assert.ok(second.fencingToken > first.fencingToken)
    const fence = redisFence({ client: client(server.port) })
    await fence.set('data', 'second', second)
    await assert.rejects(fence.set('data', 'first', first), { code: 'STALE_TOKEN', largestToken: second.fencingToken })
  })

  it('failure 5: after the clock stepped back, a claim can still end its overlong lease', async () => {
    using clock = await shiftedClock()
    await using server = await startRedis({ clock })
    const driver = driverOn(server.port)
    const held = claim()
    const { lockName } = held
    const first = await granted(driver, held)
    clock.shift(-3_600_000)
    const [shown] = (await driver.inspect({ lockName })).leases
    const { acquiredAtMs = 0, expiresAtMs = 0, claimId = '' } = shown ?? {}
    assert.ok(expiresAtMs - acquiredAtMs <= held.ttlMs + 5, 'it ends an hour from now')
    assert.deepEqual(await driver.release([{ lockName, claimId }]), [true])
    assert.ok((await granted(driver, claim({ lockName }))).fencingToken > first.fencingToken)
  })

  it('failure 6: a process whose clock is an hour off holds its lock as long as any other', async () => {
    using clock = await shiftedClock()
    const direct = driverOn(shared.port)
    let last = 0
    for (const aheadMs of [3_600_000, -3_600_000]) {
      clock.shift(aheadMs)
      await using worker = await startWorker({ source: HOLDER }, { env: clock.env })
      const [theirs, ours] = [name(), claim()]
      last = Math.max(last, (await granted(direct, ours)).fencingToken)
      assert.equal(await worker.call('take', shared.url, ours.lockName), false, 'it took what is held')
      const token = Number(await worker.call('hold', shared.url, theirs, 30))
      assert.ok(token > last, `${token} after ${last}`)
      const answer = await ask(direct, claim({ lockName: theirs }))
      assert.ok(!answer.granted)
      const leftMs = (answer.holder?.expiresAtMs ?? 0) - Date.now()
      assert.ok(leftMs > 10_000 && leftMs <= 30_000, `it ends in ${leftMs} ms`)
      assert.deepEqual(await worker.call('write', `data:${theirs}`, 'x'), { held: true, error: 'written' })
      last = token
    }
  })

  it('failure 9: a late write of the old holder is refused', async () => {
    await using proxy = await startProxy(shared.port)
    const [a, b] = [driverOn(shared.port), driverOn(shared.port)]
    const held = claim({ ttlMs: 100 })
    const { lockName } = held
    const first = await granted(a, held)
    const slow = redisFence({ client: client(proxy.port) })
    await slow.set(`data:${lockName}`, 'first', first)
    proxy.hold('toServer')
    const late = slow.set(`data:${lockName}`, 'late', first)
    late.catch(() => {})
    const second = await untilGranted(b, claim({ lockName }))
    await redisFence({ client: client(shared.port) }).set(`data:${lockName}`, 'second', second)
    proxy.release('toServer')
    await assert.rejects(late, { code: 'STALE_TOKEN' })
    assert.equal(await client(shared.port).get(`data:${lockName}`), 'second')
  })

  it('failure 26: without answers, the lease ends on time and an acquire fails in time', async () => {
    await using proxy = await startProxy(shared.port)
    await using lock = lockOn(proxy.port, { callTimeoutSeconds: 0.3 })
    const lease = await lock.hold(name(), { timeoutSeconds: 3, heartbeat: true })
    const { signal } = lease
    proxy.blackHole()
    const cutMs = performance.now()
    await assert.rejects(lock.acquire(name(), { blocking: false }), { code: 'STORE_UNAVAILABLE' })
    assert.ok(lease.held, 'one failed call is no loss')
    await until(() => signal.aborted, { timeoutMs: 15_000, failure: () => 'the loss was never told' })
    // Far less than the command timeout of the client, which is 10 s.
    assert.ok(performance.now() - cutMs < 6_000, 'the loss was told late')
    assert.equal(lease.held, false)
    proxy.heal()
  })
})

describe.concurrent('redis: requests', () => {
  it('failure 10: a lease that is granted after the client gave up is released', async () => {
    await using proxy = await startProxy(shared.port)
    await using lock = lockOn(proxy.port, { callTimeoutSeconds: 0.3 })
    const [lockName, other] = [name(), name()]
    await (await lock.hold(other)).release()
    proxy.hold('toClient')
    await assert.rejects(lock.acquire(lockName, { blocking: false, timeoutSeconds: 60 }), { code: 'STORE_UNAVAILABLE' })
    proxy.release('toClient')
    const direct = driverOn(shared.port)
    await until(
      async () => (await direct.inspect({ lockName })).leases.length === 0,
      patience('the lease to be given back'),
    )
    await granted(direct, claim({ lockName }))
  })

  it('failure 11: after a lost reply, asking again returns the same lease', async () => {
    await using proxy = await startProxy(shared.port)
    const driver = redisDriver({ client: client(proxy.port, { maxRetriesPerRequest: 0 }) })
    const held = claim()
    await granted(driver, claim())
    const lost = proxy.cutAfterForwarding(JSON.stringify(held.claimId))
    const [answer] = await driver.acquire([held], newCall()).catch((error: Error) => [error])
    await lost
    assert.ok(answer instanceof Error, 'the reply came through')
    const [shown] = (await driverOn(shared.port).inspect({ lockName: held.lockName })).leases
    assert.equal(shown?.claimId, held.claimId)
    const again = await granted(driver, held)
    assert.deepEqual([again.fencingToken, again.acquiredAtMs], [shown?.fencingToken, shown?.acquiredAtMs])
    assert.equal((await driver.inspect({ lockName: held.lockName })).leases.length, 1)
  })

  it('failure 12: a release after expiry answers no, and leaves the rival’s lease', async () => {
    const [a, b] = [driverOn(shared.port), driverOn(shared.port)]
    const [stale, rival] = pairOn(name(), { ttlMs: 60 })
    const { fencingToken } = await granted(a, stale)
    await untilGranted(b, rival)
    assert.deepEqual(await a.release([{ ...stale, fencingToken }]), [false])
    assert.equal((await b.inspect({ lockName: rival.lockName })).leases[0]?.claimId, rival.claimId)
  })

  it('failure 13: a renewal after expiry answers lost, leaves the rival’s lease, and re-creates nothing', async () => {
    const [a, b] = [driverOn(shared.port), driverOn(shared.port)]
    const [stale, rival] = pairOn(name(), { ttlMs: 60 })
    const { fencingToken } = await granted(a, stale)
    const second = await untilGranted(b, rival)
    const endOfRival = async () => (await b.inspect({ lockName: rival.lockName })).leases[0]?.expiresAtMs
    const before = await endOfRival()
    assert.deepEqual(await a.renew([{ ...stale, fencingToken, ttlMs: 120_000 }]), ['lost'])
    assert.equal(await endOfRival(), before)
    await b.release([{ ...rival, fencingToken: second.fencingToken }])
    assert.deepEqual(await a.renew([{ ...stale, fencingToken, ttlMs: 60_000 }]), ['lost'])
    assert.deepEqual((await b.inspect({ lockName: rival.lockName })).leases, [])
  })

  it('failure 14: a renewal that arrives after the release does not lock again', async () => {
    await using proxy = await startProxy(shared.port)
    const [slow, direct] = [driverOn(proxy.port), driverOn(shared.port)]
    const held = claim()
    const { fencingToken } = await granted(slow, held)
    proxy.hold('toServer')
    const renewal = slow.renew([{ ...held, fencingToken, ttlMs: 60_000 }])
    assert.deepEqual(await direct.release([{ ...held, fencingToken }]), [true])
    proxy.release('toServer')
    assert.deepEqual(await renewal, ['lost'])
    assert.deepEqual((await direct.inspect({ lockName: held.lockName })).leases, [])
  })

  it('failure 20: SCRIPT FLUSH between operations goes unnoticed', async () => {
    await using server = await startRedis()
    const driver = driverOn(server.port)
    const control = client(server.port)
    const flush = () => control.script('FLUSH')
    const held = claim()
    await flush()
    const { fencingToken } = await granted(driver, held)
    await flush()
    assert.deepEqual(await driver.renew([{ ...held, fencingToken, ttlMs: 60_000 }]), ['renewed'])
    await flush()
    assert.equal((await driver.inspect({ lockName: held.lockName })).leases.length, 1)
    await flush()
    const rate = { name: name(), cost: 1, limits: [{ limit: 1, periodMs: 1_000, burst: 1 }] }
    assert.equal((await driver.consume?.([rate]))?.length, 1)
    await flush()
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
  })
})

describe.concurrent('redis: the server’s data', () => {
  it('failure 18: tokens rise over FLUSHALL and over a restart without data', async () => {
    await using server = await startRedis()
    const lockName = name()
    let last = 0
    const next = async (): Promise<void> => {
      const { fencingToken } = await untilGranted(driverOn(server.port), claim({ lockName }))
      assert.ok(fencingToken > last, `${fencingToken} after ${last}`)
      last = fencingToken
    }
    await next()
    await client(server.port).flushall()
    await next()
    await server.kill()
    await server.restart()
    await next()
  })

  it('failure 19: an eviction policy causes a warning, and an evicted lock is lost and fenced off', async () => {
    const settings = { maxmemory: '3mb', 'maxmemory-policy': 'volatile-ttl' }
    await using server = await startRedis({ settings })
    const warnings: RedisWarning[] = []
    const driver = redisDriver({ client: client(server.port), onWarning: (warning) => warnings.push(warning) })
    // The policy evicts the key that expires first: this one.
    const held = claim({ ttlMs: 10_000 })
    const { fencingToken } = await granted(driver, held)
    const control = client(server.port)
    for (let filled = 0; (await control.exists(`lock:${held.lockName}`)) === 1; filled += 1) {
      assert.ok(filled < 200, 'nothing was evicted')
      const pipeline = control.pipeline()
      for (let at = 0; at < 50; at += 1) pipeline.set(`filler:${filled}:${at}`, 'x'.repeat(1_000), 'EX', 3_600)
      await pipeline.exec()
    }
    assert.deepEqual(await driver.renew([{ ...held, fencingToken, ttlMs: 10_000 }]), ['lost'])
    await until(() => warnings.length > 0, patience('the warning'))
    assert.deepEqual(
      warnings.map(({ code }) => code),
      ['EVICTION'],
    )
    assert.match(warnings[0]?.message ?? '', /volatile-ttl.*noeviction/s)
    assert.ok((await granted(driver, claim({ lockName: held.lockName }))).fencingToken > fencingToken)
  })

  it('failure 47: onWarning runs outside of any lock, even if the first call came from inside one', async () => {
    await using server = await startRedis({ settings: { 'maxmemory-policy': 'allkeys-lru' } })
    const [lock, lockName] = [lockOn(shared.port), name()]
    let entered: Promise<boolean> | undefined
    const onWarning = (): void => {
      entered = lock.acquire(lockName, { blocking: false }).then(({ acquired }) => acquired)
    }
    await lock.withLock(lockName, async () => {
      await granted(redisDriver({ client: client(server.port), onWarning }), claim())
      await until(() => entered !== undefined, patience('a warning'))
      assert.equal(await entered, false, 'it entered the lock of the task that asked')
    })
    await lock.close()
  })

  it('an error in onWarning is a process warning and does not end the process', async () => {
    await using server = await startRedis({ settings: { 'maxmemory-policy': 'allkeys-lru' } })
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    const onWarning = (): void => {
      throw new Error('in onWarning')
    }
    await granted(redisDriver({ client: client(server.port), onWarning }), claim())
    const isTold = (): boolean => warn.mock.calls.some(([message]) => message === 'onWarning threw Error: in onWarning')
    await until(isTold, patience('the warning'))
    warn.mockRestore()
  })

  it('the error of a server that is out of memory says what to do', async () => {
    await using server = await startRedis({ settings: { maxmemory: '1mb', 'maxmemory-policy': 'noeviction' } })
    const control = client(server.port)
    for (let at = 0; at < 3_000; at += 1) {
      const full = await control.set(`filler:${at}`, 'x'.repeat(1_000)).catch((error: Error) => error)
      if (full instanceof Error) break
    }
    await assert.rejects(
      driverOn(server.port).acquire([claim()], newCall()),
      /redis failed to acquire at redis:.*: OOM.*raise maxmemory/,
    )
  })
})

describe.concurrent('redis: missing rights', () => {
  it('a user without the right to INFO can lock, and INFO is sent once, not with every acquire', async () => {
    await using server = await startRedis()
    await client(server.port).call('ACL', 'SETUSER', 'me', 'on', '>pw', '~*', '&*', '+@all', '-info')
    const own = client(server.port, { username: 'me', password: 'pw', enableReadyCheck: false })
    const driver = redisDriver({ client: own })
    const refusals = async (): Promise<number> => {
      const stats = await client(server.port).info('commandstats')
      return Number(/^cmdstat_info:.*rejected_calls=(\d+)/m.exec(stats)?.[1])
    }
    await granted(driver, claim())
    await until(async () => (await refusals()) === 1, patience('the first look'))
    for (let round = 0; round < 5; round += 1) await granted(driver, claim())
    assert.equal(await refusals(), 1)
  })
})
