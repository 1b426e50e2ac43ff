import assert from 'node:assert/strict'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Redis } from 'ioredis'
import { describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { until } from '../../harness/processes.ts'
import type { FaultProxy } from '../../harness/proxy.ts'
import { all, claim, client, clockAhead, granted, nodesOn, proxies, redlock } from '../../harness/redlock-nodes.ts'
import type { Server } from '../../harness/servers.ts'

/** When waiters are woken. */
describe('redlock: wake-ups', () => {
  it('a waiter is woken when a quorum has released, not by the first message', async () => {
    const [, second, third] = proxies as [FaultProxy, FaultProxy, FaultProxy]
    const holder = redlock({ nodes: nodesOn(proxies.slice(0, 3)), nodeTimeoutSeconds: 10 })
    // Without timers: only messages can wake it.
    const waiter = redlock({ nodes: nodesOn(all.slice(0, 3)), nodeTimeoutSeconds: 10, clock: clockAhead(0) })
    const order: string[] = []
    await using _waiter = await listenOn(waiter, () => order.push('the waiter is woken'))
    await using _first = await listenOn(redlock({ nodes: nodesOn(all.slice(0, 1)), nodeTimeoutSeconds: 10 }), () =>
      order.push('the first copy'),
    )
    const held = claim()
    const { fencingToken } = await granted(holder, held)
    for (const proxy of [second, third]) proxy.hold('toServer')
    const released = holder.release([{ ...held, fencingToken }])
    await until(() => order.includes('the first copy'), patience('the first copy'))
    await sleep(20) // for the waiter to receive it, too
    order.push('the second node releases')
    second.release('toServer')
    await until(() => order.includes('the waiter is woken'), patience('the wake-up'))
    assert.deepEqual(order, ['the first copy', 'the second node releases', 'the waiter is woken'])
    await granted(waiter, claim({ lockName: held.lockName }))
    third.release('toServer')
    assert.deepEqual(await released, [true])
  })

  it('a waiter is woken after the release, even if no node knew the script', async () => {
    const holder = redlock({ nodes: nodesOn(proxies.slice(0, 3)), nodeTimeoutSeconds: 10 })
    const waiter = redlock({ nodes: nodesOn(all.slice(0, 3)), nodeTimeoutSeconds: 10, clock: clockAhead(0) })
    let woken = 0
    await using _ = await listenOn(waiter, () => {
      woken += 1
    })
    const held = claim()
    const { fencingToken } = await granted(holder, held)
    await Promise.all(all.slice(0, 3).map(({ port }) => client(port).script('FLUSH')))
    // The holder does not know yet that it has to send the script.
    for (const proxy of proxies) proxy.hold('toClient')
    const released = holder.release([{ ...held, fencingToken }])
    await sleep(50) // for a message that would come too early
    assert.equal(woken, 0)
    for (const proxy of proxies) proxy.release('toClient')
    await until(() => woken > 0, patience('the wake-up'))
    await granted(waiter, claim({ lockName: held.lockName }))
    assert.deepEqual(await released, [true])
  })

  it('a release that is sent again wakes waiters again', async () => {
    const driver = redlock()
    let woken = 0
    await using _ = await listenOn(redlock({ clock: clockAhead(0) }), () => {
      woken += 1
    })
    const held = claim()
    const { fencingToken } = await granted(driver, held)
    for (const turn of [1, 2]) {
      await driver.release([{ ...held, fencingToken }])
      await until(() => woken === turn, patience('the wake-up'))
    }
  })

  it('a waiter is woken a little later if the message does not arrive from a quorum', async () => {
    const [, second, third] = proxies as [FaultProxy, FaultProxy, FaultProxy]
    const holder = redlock({ nodes: nodesOn(proxies.slice(0, 3)), nodeTimeoutSeconds: 1 })
    let woken = 0
    await using _ = await listenOn(redlock({ nodes: nodesOn(all.slice(0, 3)) }), () => {
      woken += 1
    })
    const held = claim()
    const { fencingToken } = await granted(holder, held)
    for (const proxy of [second, third]) proxy.blackHole()
    const [unknown] = await holder.release([{ ...held, fencingToken }])
    assert.ok(unknown instanceof Error)
    await until(() => woken > 0, patience('the wake-up'))
  })

  it('a lost subscription is renewed, even if the others are a quorum', async () => {
    await using _ = await listenOn(redlock(), () => {})
    const [first] = all as [Server]
    await untilHeardAt(first)
    const admin = client(first.port)
    await admin.call('CLIENT', 'KILL', 'TYPE', 'pubsub')
    await until(async () => (await listenersAt(first)) === 0, patience('the loss'))
    await untilHeardAt(first)
  })

  it('a node that was out of reach is subscribed to when it is back', async () => {
    const [first] = all as [Server]
    await first.kill()
    await using _ = await listenOn(redlock(), () => {})
    await first.restart()
    await untilHeardAt(first)
  })

  it('failure 66: waiters keep a bounded number of connections to a node that hangs', async () => {
    const opened: Socket[] = []
    const onSocket = (message: unknown): void => void opened.push((message as { socket: Socket }).socket)
    const nodes = nodesOn(all)
    const driver = redlock({ nodes })
    await driver.release([claim()])
    const hung = all[4] as Server
    await hung.pause()
    subscribe('net.client.socket', onSocket)
    try {
      await using _ = await listenOn(driver, () => {})
      await sleep(13_000) // for several attempts to subscribe at the node that hangs
      const open = opened.filter(({ destroyed, remotePort }) => !destroyed && remotePort === hung.port)
      assert.ok(open.length <= 4, `${open.length} connections`)
    } finally {
      unsubscribe('net.client.socket', onSocket)
      hung.resume()
    }
  }, 30_000)

  it('repeated messages from one node count once', async () => {
    const woken: string[] = []
    await using _ = await listenOn(redlock({ clock: clockAhead(0) }), (lockName) => woken.push(lockName))
    const [first, second, third] = all.map(({ port }) => client(port)) as [Redis, Redis, Redis]
    for (const publisher of [first, first, first, second, second, second]) {
      await publisher.publish('holdfast:released', '["a lock","a claim"]')
    }
    await sleep(20) // for a wake-up, if there is one
    assert.deepEqual(woken, [])
    await third.publish('holdfast:released', '["a lock","a claim"]')
    await until(() => woken.length > 0, patience('the wake-up'))
    await first.publish('holdfast:released', '["a lock","a claim"]')
    await sleep(20) // for a second wake-up, if there is one
    assert.deepEqual(woken, ['a lock'])
  })

  it('messages of another format on the channel of releases are ignored', async () => {
    const woken: string[] = []
    await using _ = await listenOn(redlock({ clock: clockAhead(0) }), (lockName) => woken.push(lockName))
    for (const { port } of all) {
      for (const text of ['hello', 'null', '[1]', '{"0":"x"}', '"x"', '["real","claim"]']) {
        await client(port).publish('holdfast:released', text)
      }
    }
    await until(() => woken.length > 0, patience('the real one'))
    assert.deepEqual(woken, ['real'])
  })
})

async function listenOn(driver: Driver, wake: (lockName: string) => void): Promise<AsyncDisposable> {
  const stopListening = await driver.listen?.({
    wake: (target) => wake('lockName' in target ? target.lockName : ''),
    granted() {},
    lost() {},
    disconnected: () => assert.fail('disconnected'),
  })
  return { [Symbol.asyncDispose]: async () => stopListening?.() }
}

async function listenersAt({ port }: Server): Promise<number> {
  const [, count] = (await client(port).call('PUBSUB', 'NUMSUB', 'holdfast:released')) as [string, number]
  return count
}

const untilHeardAt = (server: Server): Promise<void> =>
  until(async () => (await listenersAt(server)) > 0, patience('the subscription'))

const patience = (what: string) => ({ timeoutMs: 10_000, failure: () => `${what} never came` })
