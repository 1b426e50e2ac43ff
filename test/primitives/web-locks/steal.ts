import assert from 'node:assert/strict'
import { LeaseLostError } from '../../../src/index.ts'
import { heldOn, hold, idOf, isFree, pendingOn, rejectsWithName, type Section } from './test-context.ts'

export const steal: Section = (test) => {
  test('a free lock is granted', ['steal'], async ({ locks, name }) => {
    assert.equal(await locks.request(name, { steal: true }, (lock) => lock?.mode), 'exclusive')
  })

  test('a held lock is granted', ['steal'], async ({ locks, other, name }) => {
    await hold(locks, name).granted
    assert.equal(await locks.request(name, { steal: true }, () => 'mine'), 'mine')
    await hold(other, name).granted
    assert.equal(await locks.request(name, { steal: true }, () => 'mine'), 'mine')
  })

  test('the promise of the lock that is taken rejects with an AbortError', ['steal'], async ({ locks, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const taker = hold(locks, name, { steal: true })
    await rejectsWithName(holding.done, 'AbortError')
    await taker.granted
    taker.end('result')
    assert.equal(await taker.done, 'result')
  })

  test(
    'so does the promise of another client’s lock, and its Lock’s signal says it',
    ['steal'],
    async ({ locks, other, name }) => {
      const holding = hold(other, name)
      const lock = await holding.granted
      const { signal } = lock
      const taker = hold(locks, name, { steal: true })
      await taker.granted
      await rejectsWithName(holding.done, 'AbortError')
      assert.equal(signal.aborted, true)
      assert.ok(signal.reason instanceof LeaseLostError)
      const { cause } = (await holding.done.catch((error: unknown) => error)) as { cause: unknown }
      assert.equal(cause, signal.reason)
      taker.end()
      await taker.done
    },
  )

  test('the robbed callback has no effect afterwards', ['steal'], async ({ locks, other, name }) => {
    const [first, second] = [hold(locks, name), hold(locks, `${name} 2`)]
    await Promise.all([first.granted, second.granted])
    const takers = [hold(locks, name, { steal: true }), hold(locks, `${name} 2`, { steal: true })]
    await Promise.all(takers.map(({ granted }) => granted))
    first.end('too late')
    second.end(Promise.reject(new Error('not handled')))
    await rejectsWithName(first.done, 'AbortError')
    await rejectsWithName(second.done, 'AbortError')
    await locks.query()
    assert.equal(await isFree(other, name), false, 'the taker still has it')
    for (const taker of takers) taker.end()
    await Promise.all(takers.map(({ done }) => done))
  })

  test('a taker comes before all waiting requests, and they keep their order', ['steal'], async ({ locks, name }) => {
    const order: string[] = []
    const holding = hold(locks, name)
    await holding.granted
    const waiting = [1, 2].map((index) => locks.request(name, () => order.push(`waiter ${index}`)))
    await locks.query()
    await locks.request(name, { steal: true }, () => order.push('taker'))
    await Promise.all(waiting)
    assert.deepEqual(order, ['taker', 'waiter 1', 'waiter 2'])
    await rejectsWithName(holding.done, 'AbortError')
  })

  test('of a holder, a waiter and a taker in one turn, the waiter comes last', ['steal'], async ({ locks, name }) => {
    const order: string[] = []
    const holding = hold(locks, name)
    const waiter = locks.request(name, () => order.push('waiter'))
    const taker = locks.request(name, { steal: true }, () => order.push('taker'))
    await Promise.all([waiter, taker])
    assert.deepEqual(order, ['taker', 'waiter'])
    await rejectsWithName(holding.done, 'AbortError')
  })

  test('every shared lock is taken at once', ['steal'], async ({ locks, other, name }) => {
    const readers = [locks, locks, other].map((client) => hold(client, name, { mode: 'shared' }))
    await Promise.all(readers.map(({ granted }) => granted))
    const taker = hold(locks, name, { steal: true })
    await taker.granted
    for (const { done } of readers) await rejectsWithName(done, 'AbortError')
    assert.deepEqual(await heldOn(other, name), [{ name, mode: 'exclusive', clientId: idOf(locks) }])
    taker.end()
    await taker.done
  })

  test('of several takers the last one has the lock', ['steal'], async ({ locks, name }) => {
    const takers = [1, 2, 3].map(() => hold(locks, name, { steal: true }))
    const [first, second, third] = takers as [(typeof takers)[0], (typeof takers)[0], (typeof takers)[0]]
    await rejectsWithName(first.done, 'AbortError')
    await rejectsWithName(second.done, 'AbortError')
    await third.granted
    third.end('last')
    assert.equal(await third.done, 'last')
  })

  test(
    'what was taken is no longer shown, and what waits still is',
    ['steal', 'queue'],
    async ({ locks, other, name }) => {
      const holding = hold(other, name)
      await holding.granted
      const waiter = hold(other, name)
      await other.query()
      const taker = hold(locks, name, { steal: true })
      await taker.granted
      assert.deepEqual(await heldOn(locks, name), [{ name, mode: 'exclusive', clientId: idOf(locks) }])
      assert.deepEqual(await pendingOn(locks, name), [{ name, mode: 'exclusive', clientId: idOf(other) }])
      taker.end()
      await waiter.granted
      waiter.end()
      await waiter.done
    },
  )

  test('other names are not affected', ['steal'], async ({ locks, name }) => {
    const neighbour = hold(locks, `${name} 2`)
    await neighbour.granted
    await locks.request(name, { steal: true }, () => {})
    neighbour.end('result')
    assert.equal(await neighbour.done, 'result')
  })

  test('a driver that cannot steal rejects with its reason as the cause', async ({ capabilities, locks, name }) => {
    if (capabilities.force === 'claim') return
    await rejectsWithName(
      locks.request(name, { steal: true }, () => {}),
      'NotSupportedError',
    )
  })
}
