import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import type { LockInfo } from '../../../src/primitives/web-locks/web-locks.ts'
import { type Holding, heldOn, hold, idOf, pendingOn, type Section, shown } from './test-context.ts'

export const query: Section = (test) => {
  test('nothing is held and nothing waits at first', async ({ locks }) => {
    assert.deepEqual(await locks.query(), { held: [], pending: [] })
  })

  test('every client sees a held lock with its name, mode and client, and nothing else', async (scene) => {
    const { locks, other, name } = scene
    const holdings = [hold(locks, name), hold(locks, `${name} 2`, { mode: 'shared' })]
    await Promise.all(holdings.map(({ granted }) => granted))
    for (const client of [locks, other]) {
      const held = (await shown(scene, client, 2)).toSorted((a, b) => (a.name < b.name ? -1 : 1))
      assert.deepEqual(held, [
        { name, mode: 'exclusive', clientId: idOf(locks) },
        { name: `${name} 2`, mode: 'shared', clientId: idOf(locks) },
      ])
    }
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test('a waiting request is pending', async ({ locks, name }) => {
    const [holding, waiting] = [hold(locks, name), hold(locks, name, { mode: 'shared' })]
    await holding.granted
    assert.deepEqual(await locks.query(), {
      held: [{ name, mode: 'exclusive', clientId: idOf(locks) }],
      pending: [{ name, mode: 'shared', clientId: idOf(locks) }],
    })
    holding.end()
    await waiting.granted
    waiting.end()
    await waiting.done
  })

  test('a waiting request of another client is shown, too', ['queue'], async ({ locks, other, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const waiting = hold(other, name)
    await other.query()
    assert.deepEqual(await pendingOn(locks, name), [{ name, mode: 'exclusive', clientId: idOf(other) }])
    holding.end()
    await waiting.granted
    waiting.end()
    await waiting.done
  })

  test('clients have different ids, which do not change', async (scene) => {
    const { locks, other, name } = scene
    assert.notEqual(idOf(locks), idOf(other))
    const holdings = [locks, locks, other].map((client, index) => hold(client, `${name} ${index}`))
    await Promise.all(holdings.map(({ granted }) => granted))
    const ids = (await shown(scene, locks, 3))
      .toSorted((a, b) => (a.name < b.name ? -1 : 1))
      .map(({ clientId }) => clientId)
    assert.deepEqual(ids, [idOf(locks), idOf(locks), idOf(other)])
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test('pending requests of a name are in the order of the requests', async ({ locks, name }) => {
    const modes = ['exclusive', 'shared', 'exclusive', 'exclusive', 'shared'] as const
    const holdings = [hold(locks, name), ...modes.map((mode) => hold(locks, name, { mode }))]
    assert.deepEqual(
      (await pendingOn(locks, name)).map(({ mode }) => mode),
      modes,
    )
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test('pending requests of several names are in the order of the requests', async ({ locks, name }) => {
    const names = ['1', '2', '3'].map((each) => `${name} ${each}`)
    const holdings = names.map((each) => hold(locks, each))
    await Promise.all(holdings.map(({ granted }) => granted))
    const made = [2, 1, 0, 1, 2].map((index) => names[index] as string)
    const waiting = made.map((each) => hold(locks, each, { mode: 'shared' }))
    assert.deepEqual(
      (await locks.query()).pending.map((info) => info.name),
      made,
    )
    for (const each of [...holdings, ...waiting]) each.end()
    await Promise.all([...holdings, ...waiting].map(({ done }) => done))
  })

  test('so are pending requests of several clients', ['queue'], async ({ locks, other, name }) => {
    const names = ['1', '2', '3'].map((each) => `${name} ${each}`)
    const holdings = names.map((each) => hold(locks, each))
    await Promise.all(holdings.map(({ granted }) => granted))
    const waiting: Holding[] = []
    for (const [index, client] of [other, locks, other].entries()) {
      waiting.push(hold(client, names[2 - index] as string))
      await client.query()
      await sleep(2) // stores count in milliseconds
    }
    assert.deepEqual(
      (await locks.query()).pending.map((info) => info.name),
      names.toReversed(),
    )
    for (const each of [...holdings, ...waiting]) each.end()
    await Promise.all([...holdings, ...waiting].map(({ done }) => done))
  })

  test('locks are in the order of the grants, also after a steal', async (scene) => {
    const { capabilities, locks, name } = scene
    const names = ['1', '2', '3'].map((each) => `${name} ${each}`) as [string, string, string]
    const holdings: Holding[] = []
    const take = async (each: string, options = {}): Promise<void> => {
      const holding = hold(locks, each, options)
      holdings.push(holding)
      await holding.granted
    }
    for (const each of [names[1], names[2], names[0]]) await take(each)
    const order = async () => (await shown(scene, locks, 3)).map((info) => info.name)
    assert.deepEqual(await order(), [names[1], names[2], names[0]])
    if (capabilities.force === 'claim') {
      for (const each of [names[2], names[1]]) await take(each, { steal: true })
      assert.deepEqual(await order(), [names[0], names[2], names[1]])
    }
    for (const each of holdings) each.end()
    await Promise.allSettled(holdings.map(({ done }) => done))
  })

  test('when a lock has been released, the next requests are shown as holders', ['queue'], async ({ locks, name }) => {
    const modes = ['exclusive', 'shared', 'shared', 'exclusive', 'shared'] as const
    const holdings = modes.map((mode) => hold(locks, name, { mode }))
    const look = async () => {
      const { held, pending } = await locks.query()
      return [held, pending].map((list) => list.map(({ mode }) => mode))
    }
    for (const [from, to] of [
      [0, 1],
      [1, 3],
      [3, 4],
      [4, 5],
    ] as const) {
      assert.deepEqual(await look(), [modes.slice(from, to), modes.slice(to)])
      for (const holding of holdings.slice(from, to)) holding.end()
      await Promise.all(holdings.slice(from, to).map(({ done }) => done))
    }
    assert.deepEqual(await look(), [[], []])
  })

  test('clients that wait for each other are shown as waiting', ['queue'], async ({ locks, other, name }) => {
    const [one, two] = [`${name} 1`, `${name} 2`]
    const holdings = [hold(locks, one), hold(other, two)]
    await Promise.all(holdings.map(({ granted }) => granted))
    const waiting = [hold(locks, two), hold(other, one)]
    await Promise.all([locks.query(), other.query()])
    const { held, pending } = await locks.query()
    const clientsOf = (list: LockInfo[]) => [one, two].map((each) => list.find((info) => info.name === each)?.clientId)
    assert.deepEqual(clientsOf(held), [idOf(locks), idOf(other)])
    assert.deepEqual(clientsOf(pending), [idOf(other), idOf(locks)])
    for (const each of [...holdings, ...waiting]) each.end()
    await Promise.all([...holdings, ...waiting].map(({ done }) => done))
  })

  test('it contains all earlier requests, granted or not', async ({ locks, name }) => {
    const holding = hold(locks, name)
    const waiting = hold(locks, name)
    const { held, pending } = await locks.query()
    assert.deepEqual([held.length, pending.length], [1, 1])
    for (const each of [holding, waiting]) each.end()
    await Promise.all([holding.done, waiting.done])
  })

  test('it does not contain what was released or aborted before', async ({ locks, other, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const controller = new AbortController()
    const waiting = hold(locks, name, { signal: controller.signal })
    await locks.query()
    controller.abort()
    await assert.rejects(waiting.done)
    holding.end()
    await holding.done
    await locks.request(name, () => {})
    assert.deepEqual(await heldOn(other, name), [])
    assert.deepEqual(await pendingOn(locks, name), [])
  })

  test('every shared lock is shown', async (scene) => {
    const { locks, other, name } = scene
    const holdings = [locks, other, locks].map((client) => hold(client, name, { mode: 'shared' }))
    await Promise.all(holdings.map(({ granted }) => granted))
    const held = await shown(scene, other, 3)
    assert.equal(held.length, 3)
    assert.deepEqual(new Set(held.map(({ clientId }) => clientId)), new Set([idOf(locks), idOf(other)]))
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test('a snapshot is plain data, and does not change', async ({ locks, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const [first, second] = [await locks.query(), await locks.query()]
    assert.notEqual(first, second)
    assert.notEqual(first.held[0], second.held[0])
    assert.deepEqual(JSON.parse(JSON.stringify(first)), first)
    holding.end()
    await holding.done
    assert.equal(first.held.length, 1)
  })

  test('locks of another origin are not shown', async ({ locks, open, name }) => {
    const stranger = open({ prefix: 'another origin:' })
    const holding = hold(stranger, name)
    await holding.granted
    assert.deepEqual(await locks.query(), { held: [], pending: [] })
    assert.equal(await locks.request(name, { ifAvailable: true }, (lock) => lock?.name), name)
    holding.end()
    await holding.done
  })
}
