import assert from 'node:assert/strict'
import { setImmediate as turn } from 'node:timers/promises'
import { hold, isFree, pendingOn, rejectsWithName, type Section } from './test-context.ts'

export const ifAvailable: Section = (test) => {
  test('a free lock is granted, and held like any other', async ({ locks, other, name }) => {
    const holding = hold(locks, name, { ifAvailable: true })
    await holding.granted
    assert.equal(await isFree(other, name), false)
    holding.end('result')
    assert.equal(await holding.done, 'result')
  })

  test('a held lock is not: the callback receives null, and the promise has its result', async ({
    locks,
    other,
    name,
  }) => {
    const holding = hold(locks, name)
    await holding.granted
    for (const client of [locks, other]) {
      assert.equal(
        await client.request(name, { ifAvailable: true }, async (lock) => [lock, 'result']).then(String),
        ',result',
      )
    }
    holding.end()
    await holding.done
  })

  test('the promise rejects with what a callback with null throws', async ({ locks, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const [thrown, rejected] = [new Error('thrown'), new Error('rejected')]
    const throws = locks.request(name, { ifAvailable: true }, () => {
      throw thrown
    })
    await assert.rejects(throws, thrown)
    await assert.rejects(
      locks.request(name, { ifAvailable: true }, async () => Promise.reject(rejected)),
      rejected,
    )
    holding.end()
    await holding.done
  })

  test('null holds nothing and leaves no request behind, however long its callback takes', async ({
    locks,
    other,
    name,
  }) => {
    const holding = hold(locks, name)
    await holding.granted
    let end = (): void => {}
    const refused = other.request(name, { ifAvailable: true }, (lock) => {
      assert.equal(lock, null)
      return new Promise<void>((resolve) => {
        end = resolve
      })
    })
    await other.query()
    assert.deepEqual(await pendingOn(locks, name), [])
    holding.end()
    await holding.done
    assert.equal(await isFree(locks, name), true)
    end()
    await refused
  })

  test('a shared lock is available beside shared ones, and not beside an exclusive one', async ({
    locks,
    other,
    name,
  }) => {
    const reader = hold(locks, name, { mode: 'shared' })
    await reader.granted
    assert.equal(await isFree(other, name, { mode: 'shared' }), true)
    assert.equal(await isFree(other, name, { mode: 'exclusive' }), false)
    reader.end()
    await reader.done
    const writer = hold(locks, name)
    await writer.granted
    assert.equal(await isFree(other, name, { mode: 'shared' }), false)
    writer.end()
    await writer.done
  })

  test('a lock is not available while a request waits for it', async ({ locks, name }) => {
    const reader = hold(locks, name, { mode: 'shared' })
    await reader.granted
    const writer = hold(locks, name)
    assert.equal(await isFree(locks, name, { mode: 'shared' }), false)
    reader.end()
    await writer.granted
    writer.end()
    await writer.done
  })

  test('a lock is not available while another client waits for it', ['queue'], async ({ locks, other, name }) => {
    const reader = hold(locks, name, { mode: 'shared' })
    await reader.granted
    const writer = hold(locks, name)
    await locks.query()
    assert.equal(await isFree(other, name, { mode: 'shared' }), false)
    reader.end()
    await writer.granted
    writer.end()
    await writer.done
  })

  test('a lock is not available after a request of the same turn', async ({ locks, name }) => {
    const holding = hold(locks, name)
    assert.equal(await isFree(locks, name), false)
    await holding.granted
    holding.end()
    await holding.done
  })

  test('a lock is available right after the callback has ended, although the release is in flight', async ({
    locks,
    name,
  }) => {
    const holding = hold(locks, name)
    await holding.granted
    holding.end()
    await turn()
    assert.equal(await isFree(locks, name), true)
    await holding.done
  })
}

export const signal: Section = (test) => {
  test('an abort before the grant rejects with the signal’s reason, and the callback is never called', async ({
    locks,
    name,
  }) => {
    const holding = hold(locks, name)
    await holding.granted
    const controller = new AbortController()
    const waiting = hold(locks, name, { signal: controller.signal })
    await locks.query()
    const reason = new Error('changed my mind')
    controller.abort(reason)
    await assert.rejects(waiting.done, (error) => error === reason)
    holding.end()
    await holding.done
    await locks.request(name, () => {})
    assert.equal(waiting.isGranted, false)
  })

  test('without a reason it is an AbortError, and with a timeout signal a TimeoutError', async ({ locks, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const controller = new AbortController()
    const waiting = hold(locks, name, { signal: controller.signal })
    controller.abort()
    await rejectsWithName(waiting.done, 'AbortError')
    await rejectsWithName(hold(locks, name, { signal: AbortSignal.timeout(5) }).done, 'TimeoutError')
    holding.end()
    await holding.done
  })

  test('an abort in the turn of the request comes before the grant, and the lock stays free', async ({
    locks,
    other,
    name,
  }) => {
    const controller = new AbortController()
    const request = hold(locks, name, { signal: controller.signal })
    controller.abort()
    await rejectsWithName(request.done, 'AbortError')
    await locks.request(name, () => {})
    await other.request(name, () => {})
    assert.equal(request.isGranted, false)
  })

  test('an abort has no effect once the lock is granted', async ({ locks, other, name }) => {
    const controller = new AbortController()
    const holding = hold(locks, name, { signal: controller.signal })
    await holding.granted
    controller.abort()
    await locks.query()
    assert.equal(await isFree(other, name), false)
    holding.end('result')
    assert.equal(await holding.done, 'result')
  })

  test('an abort inside the callback has no effect either', async ({ locks, name }) => {
    const controller = new AbortController()
    const request = locks.request(name, { signal: controller.signal }, async () => {
      controller.abort()
      await turn()
      return 'result'
    })
    assert.equal(await request, 'result')
  })

  test('a signal that is never aborted, or only after the release, changes nothing', async ({ locks, name }) => {
    const controller = new AbortController()
    assert.equal(await locks.request(name, { signal: controller.signal }, () => 'result'), 'result')
    controller.abort()
    assert.equal(await isFree(locks, name), true)
  })

  test('an aborted request does not block others', async ({ locks, name }) => {
    const reader = hold(locks, name, { mode: 'shared' })
    await reader.granted
    const controller = new AbortController()
    const writer = hold(locks, name, { signal: controller.signal })
    const late = hold(locks, name, { mode: 'shared' })
    await locks.query()
    assert.equal(late.isGranted, false)
    controller.abort()
    await late.granted
    await rejectsWithName(writer.done, 'AbortError')
    for (const holding of [reader, late]) holding.end()
    await Promise.all([reader.done, late.done])
  })

  test('other requests keep their places', async ({ locks, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const controller = new AbortController()
    const order: string[] = []
    const first = locks.request(name, () => order.push('first'))
    const second = locks.request(name, { signal: controller.signal }, () => order.push('second'))
    const third = locks.request(name, () => order.push('third'))
    second.catch(() => {})
    await locks.query()
    controller.abort()
    await rejectsWithName(second, 'AbortError')
    holding.end()
    await Promise.all([first, third])
    assert.deepEqual(order, ['first', 'third'])
  })

  test('an earlier listener of the signal cannot hide the abort from the request', async ({ locks, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const controller = new AbortController()
    controller.signal.addEventListener('abort', (event) => event.stopImmediatePropagation())
    const waiting = hold(locks, name, { signal: controller.signal })
    await locks.query()
    const behind = hold(locks, name, { signal: controller.signal }) // not in the store yet
    controller.abort()
    await rejectsWithName(waiting.done, 'AbortError')
    await rejectsWithName(behind.done, 'AbortError')
    holding.end()
    await holding.done
  })

  test('one signal can be used for many requests', async ({ locks, other, name }) => {
    const holding = hold(locks, name)
    await holding.granted
    const { signal: both, abort } = abortable()
    const waiting = [
      hold(locks, name, { signal: both }),
      hold(other, name, { signal: both }),
      hold(locks, name, { signal: both }),
    ]
    await Promise.all([locks.query(), other.query()])
    abort()
    for (const { done } of waiting) await rejectsWithName(done, 'AbortError')
    holding.end()
    await holding.done
    await other.request(name, () => {})
  })
}

function abortable(): { signal: AbortSignal; abort(): void } {
  const controller = new AbortController()
  return { signal: controller.signal, abort: () => controller.abort() }
}
