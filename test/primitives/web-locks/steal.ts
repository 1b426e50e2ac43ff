import assert from 'node:assert/strict'
import { LeaseLostError } from '../../../src/index.ts'
import { heldOn, hold, isFree, pendingOn, rejectsWithName, type Section } from './test-context.ts'

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

  test('the promise of the stolen lock rejects with an AbortError', ['steal'], async ({ locks, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const thief = hold(locks, name, { steal: true })
    await rejectsWithName(holding.done, 'AbortError')
    await thief.granted
    thief.end('result')
    assert.equal(await thief.done, 'result')
  })

  test(
    'so does the promise of another client’s lock, and its Lock’s signal says it',
    ['steal'],
    async ({ locks, other, name }) => {
      const holding = hold(other, name)
      const lock = await holding.granted
      const { signal } = lock
      const thief = hold(locks, name, { steal: true })
      await thief.granted
      await rejectsWithName(holding.done, 'AbortError')
      assert.equal(signal.aborted, true)
      assert.ok(signal.reason instanceof LeaseLostError)
      const { cause } = (await holding.done.catch((error: unknown) => error)) as { cause: unknown }
      assert.equal(cause, signal.reason)
      thief.end()
      await thief.done
    },
  )

  test('the robbed callback has no effect afterwards', ['steal'], async ({ locks, other, name }) => {
    const [first, second] = [hold(locks, name), hold(locks, `${name} 2`)]
    await Promise.all([first.granted, second.granted])
    const thieves = [hold(locks, name, { steal: true }), hold(locks, `${name} 2`, { steal: true })]
    await Promise.all(thieves.map(({ granted }) => granted))
    first.end('too late')
    second.end(Promise.reject(new Error('not handled')))
    await rejectsWithName(first.done, 'AbortError')
    await rejectsWithName(second.done, 'AbortError')
    await locks.query()
    assert.equal(await isFree(other, name), false, 'the thief still has it')
    for (const thief of thieves) thief.end()
    await Promise.all(thieves.map(({ done }) => done))
  })

  test('a thief comes before all waiting requests, and they keep their order', ['steal'], async ({ locks, name }) => {
    const order: string[] = []
    const holding = hold(locks, name)
    await holding.granted
    const waiting = [1, 2].map((index) => locks.request(name, () => order.push(`waiter ${index}`)))
    await locks.query()
    await locks.request(name, { steal: true }, () => order.push('thief'))
    await Promise.all(waiting)
    assert.deepEqual(order, ['thief', 'waiter 1', 'waiter 2'])
    await rejectsWithName(holding.done, 'AbortError')
  })

  test('of a holder, a waiter and a thief in one turn, the waiter comes last', ['steal'], async ({ locks, name }) => {
    const order: string[] = []
    const holding = hold(locks, name)
    const waiter = locks.request(name, () => order.push('waiter'))
    const thief = locks.request(name, { steal: true }, () => order.push('thief'))
    await Promise.all([waiter, thief])
    assert.deepEqual(order, ['thief', 'waiter'])
    await rejectsWithName(holding.done, 'AbortError')
  })

  test('every shared lock is stolen at once', ['steal'], async ({ locks, other, name }) => {
    const readers = [locks, locks, other].map((client) => hold(client, name, { mode: 'shared' }))
    await Promise.all(readers.map(({ granted }) => granted))
    const thief = hold(locks, name, { steal: true })
    await thief.granted
    for (const { done } of readers) await rejectsWithName(done, 'AbortError')
    assert.deepEqual(await heldOn(other, name), [{ name, mode: 'exclusive', clientId: locks.clientId }])
    thief.end()
    await thief.done
  })

  test('of several thieves the last one has the lock', ['steal'], async ({ locks, name }) => {
    const thieves = [1, 2, 3].map(() => hold(locks, name, { steal: true }))
    const [first, second, third] = thieves as [(typeof thieves)[0], (typeof thieves)[0], (typeof thieves)[0]]
    await rejectsWithName(first.done, 'AbortError')
    await rejectsWithName(second.done, 'AbortError')
    await third.granted
    third.end('last')
    assert.equal(await third.done, 'last')
  })

  test(
    'what was stolen is no longer shown, and what waits still is',
    ['steal', 'queue'],
    async ({ locks, other, name }) => {
      const holding = hold(other, name)
      await holding.granted
      const waiter = hold(other, name)
      await other.query()
      const thief = hold(locks, name, { steal: true })
      await thief.granted
      assert.deepEqual(await heldOn(locks, name), [{ name, mode: 'exclusive', clientId: locks.clientId }])
      assert.deepEqual(await pendingOn(locks, name), [{ name, mode: 'exclusive', clientId: other.clientId }])
      thief.end()
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
    if (capabilities.steal) return
    await rejectsWithName(
      locks.request(name, { steal: true }, () => {}),
      'NotSupportedError',
    )
  })
}
