import assert from 'node:assert/strict'
import { heldOn, hold, pendingOn, type Section, shown } from './scene.ts'

export const query: Section = (test) => {
  test('nothing is held and nothing waits at first', async ({ locks }) => {
    assert.deepEqual(await locks.query(), { held: [], pending: [] })
  })

  test('a lock that is held is shown with name, mode and client, and nothing else, to every client', async (scene) => {
    const { locks, other, name } = scene
    const holdings = [hold(locks, name), hold(locks, `${name} 2`, { mode: 'shared' })]
    await Promise.all(holdings.map(({ granted }) => granted))
    for (const client of [locks, other]) {
      const held = (await shown(scene, client, 2)).toSorted((a, b) => (a.name < b.name ? -1 : 1))
      assert.deepEqual(held, [
        { name, mode: 'exclusive', clientId: locks.clientId },
        { name: `${name} 2`, mode: 'shared', clientId: locks.clientId },
      ])
    }
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test('a request that waits is shown as pending', async ({ locks, name }) => {
    const [holding, waiting] = [hold(locks, name), hold(locks, name, { mode: 'shared' })]
    await holding.granted
    assert.deepEqual(await locks.query(), {
      held: [{ name, mode: 'exclusive', clientId: locks.clientId }],
      pending: [{ name, mode: 'shared', clientId: locks.clientId }],
    })
    holding.end()
    await waiting.granted
    waiting.end()
    await waiting.done
  })

  test('a request of another client that waits is shown, too', ['queue'], async ({ locks, other, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const waiting = hold(other, name)
    await other.query()
    assert.deepEqual(await pendingOn(locks, name), [{ name, mode: 'exclusive', clientId: other.clientId }])
    holding.end()
    await waiting.granted
    waiting.end()
    await waiting.done
  })

  test('clients have different ids, and each always the same', async (scene) => {
    const { locks, other, name } = scene
    assert.notEqual(locks.clientId, other.clientId)
    const holdings = [locks, locks, other].map((client, index) => hold(client, `${name} ${index}`))
    await Promise.all(holdings.map(({ granted }) => granted))
    const ids = (await shown(scene, locks, 3))
      .toSorted((a, b) => (a.name < b.name ? -1 : 1))
      .map(({ clientId }) => clientId)
    assert.deepEqual(ids, [locks.clientId, locks.clientId, other.clientId])
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test('pending requests of a name are shown in the order in which they were made', async ({ locks, name }) => {
    const modes = ['exclusive', 'shared', 'exclusive', 'exclusive', 'shared'] as const
    const holdings = [hold(locks, name), ...modes.map((mode) => hold(locks, name, { mode }))]
    assert.deepEqual(
      (await pendingOn(locks, name)).map(({ mode }) => mode),
      modes,
    )
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test('what was asked for before it is in it, whether or not it was granted yet', async ({ locks, name }) => {
    const holding = hold(locks, name)
    const waiting = hold(locks, name)
    const { held, pending } = await locks.query()
    assert.deepEqual([held.length, pending.length], [1, 1])
    for (const each of [holding, waiting]) each.end()
    await Promise.all([holding.done, waiting.done])
  })

  test('what was given back or given up before it is not', async ({ locks, other, name }) => {
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

  test('each of several shared locks is shown', async (scene) => {
    const { locks, other, name } = scene
    const holdings = [locks, other, locks].map((client) => hold(client, name, { mode: 'shared' }))
    await Promise.all(holdings.map(({ granted }) => granted))
    const held = await shown(scene, other, 3)
    assert.equal(held.length, 3)
    assert.deepEqual(new Set(held.map(({ clientId }) => clientId)), new Set([locks.clientId, other.clientId]))
    for (const holding of holdings) holding.end()
    await Promise.all(holdings.map(({ done }) => done))
  })

  test('a snapshot is plain data of its own, which does not change any more', async ({ locks, name }) => {
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
