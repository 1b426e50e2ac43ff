import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, it } from 'vitest'
import type { Driver, LeaseRecord } from '../../../src/core/driver.ts'
import { until } from '../../harness/processes.ts'
import { type FaultProxy, startProxy } from '../../harness/proxy.ts'
import { all, claim, granted, nodesOn, proxies, redlock, untilFree, untilTokens } from '../../harness/redlock-nodes.ts'
import type { Server } from '../../harness/servers.ts'

const BY = { by: 'ada', endSession: false }

/** Not concurrent: all tests damage the same five servers. */
describe('redlock: forced releases', () => {
  it('a lease is ended while a minority of nodes is away, and the next token is higher', async () => {
    const [holder, operator] = [redlock(), redlock({ nodes: nodesOn(proxies), nodeTimeoutSeconds: 0.5 })]
    const held = claim()
    const { fencingToken } = await granted(holder, held)
    const lease = await leaseOn(operator, held.lockName)
    for (const index of [0, 2]) (proxies[index] as FaultProxy).blackHole()
    assert.deepEqual(await operator.extensions?.forceRelease?.([lease], BY), [true])
    assert.deepEqual(await holder.renew([{ ...held, fencingToken, ttlMs: 60_000 }]), ['lost'])
    const next = claim({ lockName: held.lockName })
    // The two nodes that were away still have the lease.
    const after = await granted(operator, next)
    assert.ok(after.fencingToken > fencingToken)
    assert.deepEqual(await holder.release([{ ...held, fencingToken }]), [false])
    assert.equal((await leaseOn(holder, held.lockName)).claimId, next.claimId)
  })

  it('with a majority away it is an error, and the holder keeps the lock', async () => {
    const [holder, operator] = [redlock(), redlock({ nodes: nodesOn(proxies), nodeTimeoutSeconds: 0.5 })]
    const held = claim()
    const { fencingToken } = await granted(holder, held)
    const lease = await leaseOn(operator, held.lockName)
    for (const index of [0, 1, 2]) (proxies[index] as FaultProxy).blackHole()
    const [answer] = (await operator.extensions?.forceRelease?.([lease], BY)) ?? []
    assert.ok(answer instanceof Error)
    assert.match(answer.message, /could not end the lease: 3 of 5 nodes failed, 3 are needed/)
    assert.deepEqual(await holder.renew([{ ...held, fencingToken, ttlMs: 60_000 }]), ['renewed'])
  })

  it('a lease that another has replaced is not ended, and a second forced release of it ends nothing', async () => {
    const [holder, operator] = [redlock(), redlock()]
    const first = claim()
    const { fencingToken } = await granted(holder, first)
    const lease = await leaseOn(operator, first.lockName)
    assert.deepEqual(await operator.extensions?.forceRelease?.([lease], BY), [true])
    const second = claim({ lockName: first.lockName })
    const after = await granted(holder, second)
    assert.deepEqual(await operator.extensions?.forceRelease?.([lease], BY), [false])
    assert.deepEqual(await holder.renew([{ ...second, ...after, ttlMs: 60_000 }]), ['renewed'])
    assert.deepEqual(await holder.renew([{ ...first, fencingToken, ttlMs: 60_000 }]), ['lost'])
  })

  it('a renewal between the nodes, which repairs the lease, does not undo a forced release', async () => {
    const holder = redlock({ nodes: nodesOn(all.slice(0, 3)) })
    const operator = redlock({ nodes: nodesOn(proxies.slice(0, 3)), nodeTimeoutSeconds: 20 })
    await granted(operator, claim())
    const held = claim()
    const { fencingToken } = await granted(holder, held)
    const renewal = { ...held, fencingToken, ttlMs: 60_000 }
    const lease = await leaseOn(holder, held.lockName)
    const [, second, third] = proxies as [FaultProxy, FaultProxy, FaultProxy]
    second.hold('toServer')
    third.hold('toServer')
    const ended = operator.extensions?.forceRelease?.([lease], BY)
    await untilTokens(all.slice(0, 3), held, [undefined, fencingToken, fencingToken])
    assert.deepEqual(await holder.renew([renewal]), ['renewed'])
    await sleep(100) // for the repair, which the first node refuses
    second.release('toServer')
    assert.deepEqual(await ended, [true])
    assert.deepEqual(await holder.renew([renewal]), ['lost'])
    third.release('toServer')
  })

  it('a repair that arrives after a forced release, while a node is away, does not undo it', async () => {
    const servers = all.slice(0, 3)
    const holder = redlock({ nodes: nodesOn(proxies.slice(0, 3)), nodeTimeoutSeconds: 20 })
    const [second, third] = await Promise.all(servers.slice(1).map(({ port }) => startProxy(port)))
    try {
      const operator = redlock({ nodes: nodesOn([servers[0], second, third] as FaultProxy[]), nodeTimeoutSeconds: 20 })
      await granted(operator, claim())
      const held = claim()
      const { fencingToken } = await granted(holder, held)
      const renewal = { ...held, fencingToken, ttlMs: 60_000 }
      const lease = await leaseOn(operator, held.lockName)
      assert.deepEqual(await holder.renew([renewal]), ['renewed'])
      third?.blackHole()
      second?.hold('toServer')
      const ended = operator.extensions?.forceRelease?.([lease], BY)
      await untilTokens(servers, held, [undefined, fencingToken, fencingToken])
      const [toFirst, toSecond] = proxies as [FaultProxy, FaultProxy]
      toSecond.hold('toClient')
      const renewed = holder.renew([renewal])
      await sleep(100) // until the first node has answered that the lease is lost
      toFirst.hold('toServer')
      toSecond.release('toClient')
      assert.deepEqual(await renewed, ['renewed'])
      second?.release('toServer')
      assert.deepEqual(await ended, [true])
      toFirst.release('toServer')
      await sleep(100) // for the repair
      assert.deepEqual(await holder.renew([renewal]), ['lost'])
    } finally {
      await Promise.all([second?.close(), third?.close()])
    }
  })

  it('rule 7: renewals that cross a forced release never bring the lease back', async () => {
    const [holder, operator] = [redlock(), redlock()]
    for (let round = 0; round < 30; round += 1) {
      const held = claim()
      const { fencingToken } = await granted(holder, held)
      const lease = await leaseOn(operator, held.lockName)
      const renewal = { ...held, fencingToken, ttlMs: 60_000 }
      const renewals = [holder.renew([renewal]), holder.renew([renewal])]
      const ended = operator.extensions?.forceRelease?.([lease], BY)
      renewals.push(holder.renew([renewal]), holder.renew([renewal]))
      assert.deepEqual(await ended, [true])
      await Promise.all(renewals)
      assert.deepEqual(await holder.renew([renewal]), ['lost'])
      // As core does with a lease that is lost. A repair may have come to a minority of the nodes meanwhile.
      await holder.release([{ ...held, fencingToken }])
      await untilFree(held.lockName)
      const next = await granted(operator, claim({ lockName: held.lockName }))
      assert.ok(next.fencingToken > fencingToken)
    }
  })

  it('the nodes that are left notify a holder that listens', async () => {
    const [holder, operator] = [redlock({ nodes: nodesOn(proxies), nodeTimeoutSeconds: 0.5 }), redlock()]
    const held = claim()
    await granted(holder, held)
    const lease = await leaseOn(operator, held.lockName)
    const heard: string[] = []
    const lost = (claimId: string): void => void heard.push(claimId)
    const stop = await holder.listen?.({ lost, wake() {}, granted() {}, disconnected: assert.fail })
    await (all[4] as Server).kill()
    assert.deepEqual(await operator.extensions?.forceRelease?.([lease], BY), [true])
    await until(() => heard.includes(held.claimId), { timeoutMs: 30_000, failure: () => 'the holder was not told' })
    await stop?.()
  })
})

async function leaseOn(driver: Driver, lockName: string): Promise<LeaseRecord> {
  const [lease] = (await driver.inspect({ lockName })).leases
  assert.ok(lease, `${lockName} is not held`)
  return lease
}
