import assert from 'node:assert/strict'
import { setImmediate as turn } from 'node:timers/promises'
import { Lock } from '../../../src/primitives/web-locks/web-locks.ts'
import { hold, isFree, type Section } from './test-context.ts'

/** How the callback is called, and what happens with its result. */
export const callbacks: Section = (test) => {
  test('the callback receives a Lock with the requested name and mode', async ({ locks, name }) => {
    for (const mode of ['exclusive', 'shared'] as const) {
      await locks.request(name, { mode }, (lock) => {
        assert.ok(lock instanceof Lock)
        assert.equal(lock.name, name)
        assert.equal(lock.mode, mode)
      })
    }
  })

  test('it is called later, never during request()', async ({ locks, name }) => {
    let called = false
    const request = locks.request(name, () => {
      called = true
    })
    assert.equal(called, false)
    await request
    assert.equal(called, true)
  })

  test('it is called once, without a this, with one argument', async ({ locks, name }) => {
    const calls: [self: unknown, count: number][] = []
    await locks.request(name, function (this: unknown, ...args: unknown[]) {
      calls.push([this, args.length])
    })
    assert.deepEqual(calls, [[undefined, 1]])
  })

  test('the promise resolves with the returned value, also of a promise or a thenable', async ({ locks, name }) => {
    const value = { some: 'value' }
    assert.equal(await locks.request(name, () => value), value)
    assert.equal(await locks.request(name, async () => value), value)
    // biome-ignore lint/suspicious/noThenProperty: a thenable is what is tested.
    const thenable = { then: (resolve: (given: unknown) => void) => resolve(value) }
    assert.equal(await locks.request(name, () => thenable), value)
    assert.equal(await locks.request(name, () => {}), undefined)
  })

  test('the promise rejects with what it throws, and the lock is free again', async ({ locks, other, name }) => {
    const thrown = { not: 'even an Error' }
    const request = locks.request(name, () => {
      throw thrown
    })
    await request.then(
      () => assert.fail('it resolved'),
      (error: unknown) => assert.equal(error, thrown),
    )
    assert.equal(await isFree(other, name), true)
  })

  test('a thrown thenable is not resolved', async ({ locks, name }) => {
    const asked: unknown[] = []
    // biome-ignore lint/suspicious/noThenProperty: a thenable is what is tested.
    const thrown = { then: (resolve: unknown) => void asked.push(resolve) }
    for (const callback of [() => Promise.reject(thrown), () => throws(thrown)]) {
      await locks.request(name, callback).then(
        () => assert.fail('it resolved'),
        (error: unknown) => assert.equal(error, thrown),
      )
    }
    assert.deepEqual(asked, [])
  })

  test('the promise rejects with the reason of its promise, and the lock is free again', async ({
    locks,
    other,
    name,
  }) => {
    const thrown = new Error('later')
    await assert.rejects(
      locks.request(name, async () => {
        await turn()
        throw thrown
      }),
      thrown,
    )
    assert.equal(await isFree(other, name), true)
  })

  test('a Lock keeps its name and mode after the release, and neither can be set', async ({ locks, name }) => {
    const lock = await locks.request(name, { mode: 'shared' }, async (given) => given)
    assert.ok(lock !== null)
    assert.deepEqual([lock.name, lock.mode], [name, 'shared'])
    assert.throws(() => Object.assign(lock, { name: 'another' }), TypeError)
    assert.equal(lock.name, name)
  })

  test('every grant has its own Lock', async ({ locks, name }) => {
    const first = await locks.request(name, async (lock) => lock)
    const second = await locks.request(name, async (lock) => lock)
    assert.notEqual(first, second)
  })
}

function throws(thrown: unknown): never {
  throw thrown
}

/** How long a lock is held. */
export const held: Section = (test) => {
  test('the lock is held until the callback’s promise has resolved', async ({ locks, other, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    await turn()
    assert.equal(await isFree(other, name), false)
    assert.equal(await isFree(locks, name), false)
    holding.end('result')
    assert.equal(await holding.done, 'result')
    assert.equal(await isFree(other, name), true)
  })

  test('the lock is held until the callback’s promise has rejected', async ({ locks, other, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    assert.equal(await isFree(other, name), false)
    holding.end(Promise.reject(new Error('the end')))
    await assert.rejects(holding.done, /the end/)
    assert.equal(await isFree(other, name), true)
  })

  test('when the promise has settled the lock is free, for this client and for others', async ({
    locks,
    other,
    name,
  }) => {
    await locks.request(name, () => 'at once')
    assert.equal(await isFree(locks, name), true)
    assert.equal(await isFree(other, name), true)
  })

  test('the promise settles after the callback’s own', async ({ locks, name }) => {
    const order: string[] = []
    let end = (): void => {}
    const inner = new Promise<void>((resolve) => {
      end = resolve
    })
    const outer = locks.request(name, () => inner)
    outer.then(() => order.push('request'))
    inner.then(() => order.push('callback'))
    end()
    await Promise.all([outer, inner])
    assert.deepEqual(order, ['callback', 'request'])
  })

  test('the promise is still pending while the callback’s is', async ({ locks, name }) => {
    const holding = hold(locks, name)
    let settled = false
    holding.done.finally(() => {
      settled = true
    })
    await holding.granted
    await locks.query()
    assert.equal(settled, false)
    holding.end()
    await holding.done
  })

  test('different names are independent', async ({ locks, other, name }) => {
    const [first, second, third] = [hold(locks, name), hold(locks, `${name} 2`), hold(other, `${name} 3`)]
    await Promise.all([first.granted, second.granted, third.granted])
    for (const holding of [first, second, third]) holding.end()
    await Promise.all([first.done, second.done, third.done])
  })

  test('another lock can be requested while one is held, and a nested request for the same name waits', async ({
    locks,
    name,
  }) => {
    const order: string[] = []
    let inner: Promise<unknown> | undefined
    await locks.request(name, async () => {
      order.push('outer')
      await locks.request(`${name} 2`, () => order.push('inside'))
      inner = locks.request(name, () => order.push('after'))
      await locks.query()
      order.push('outer ends')
    })
    await inner
    assert.deepEqual(order, ['outer', 'inside', 'outer ends', 'after'])
  })
}
