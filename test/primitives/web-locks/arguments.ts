import assert from 'node:assert/strict'
import { Lock, type LockManager } from '../../../src/primitives/web-locks/web-locks.ts'
import { rejectsWithName, type Section } from './test-context.ts'

/** For calls that the compiler would reject. */
type Loose = (...args: unknown[]) => Promise<unknown>
const loose = (locks: LockManager): Loose => (locks.request as unknown as Loose).bind(locks)

const nothing = (): void => {}

/** WebIDL: the conversion of the arguments before the method's own steps, and the shape of the interfaces. */
export const conversions: Section = (test) => {
  test('request() without arguments, or with a name alone, rejects with a TypeError', async ({ locks, name }) => {
    await assert.rejects(loose(locks)(), TypeError)
    await assert.rejects(loose(locks)(name), TypeError)
  })

  test('a callback that is not a function is a TypeError, with and without options before it', async ({
    locks,
    name,
  }) => {
    for (const callback of [undefined, null, {}, 'callback', 7]) {
      await assert.rejects(loose(locks)(name, callback), TypeError)
      await assert.rejects(loose(locks)(name, {}, callback), TypeError)
    }
  })

  test('options that are not an object are a TypeError', async ({ locks, name }) => {
    for (const options of ['exclusive', 7, 7n, true, Symbol('options')]) {
      await assert.rejects(loose(locks)(name, options, nothing), TypeError)
    }
  })

  test('options that are undefined or null, or an object or a function without members, are the default', async ({
    locks,
    name,
  }) => {
    for (const options of [undefined, null, {}, Object.create(null), nothing, []]) {
      assert.equal(await loose(locks)(name, options, (lock: Lock) => lock.mode), 'exclusive')
    }
  })

  test('mode is one of two words', async ({ locks, name }) => {
    for (const mode of ['', 'Exclusive', 'shared ', 'upgradable', null, 0, {}]) {
      await assert.rejects(loose(locks)(name, { mode }, nothing), TypeError)
    }
    for (const mode of ['exclusive', 'shared']) {
      assert.equal(await loose(locks)(name, { mode }, (lock: Lock) => lock.mode), mode)
    }
  })

  test('mode is converted to a string, and undefined means the default', async ({ locks, name }) => {
    const mode = { toString: () => 'shared' }
    assert.equal(await loose(locks)(name, { mode }, (lock: Lock) => lock.mode), 'shared')
    assert.equal(await loose(locks)(name, { mode: undefined }, (lock: Lock) => lock.mode), 'exclusive')
    await assert.rejects(loose(locks)(name, { mode: Symbol('shared') }, nothing), TypeError)
  })

  test('ifAvailable and steal are converted to booleans', async ({ locks, name }) => {
    await rejectsWithName(loose(locks)(name, { ifAvailable: 'no', steal: {} }, nothing), 'NotSupportedError')
    assert.equal(await loose(locks)(name, { ifAvailable: 1, steal: 0 }, (lock: unknown) => lock instanceof Lock), true)
    assert.equal(await loose(locks)(name, { ifAvailable: null, steal: '' }, (lock: Lock) => lock.name), name)
  })

  test('a signal that is not an AbortSignal is a TypeError', async ({ locks, name }) => {
    const pretended = Object.create(AbortSignal.prototype)
    for (const signal of [
      null,
      false,
      'signal',
      1.5,
      {},
      nothing,
      Symbol('signal'),
      new AbortController(),
      pretended,
    ]) {
      await assert.rejects(loose(locks)(name, { signal }, nothing), TypeError)
    }
    assert.equal(await loose(locks)(name, { signal: undefined }, (lock: Lock) => lock.name), name)
  })

  test('name first, then the members of the options by name, each once, and the callback last', async ({ locks }) => {
    const read: string[] = []
    const options = new Proxy({}, { get: (_, member) => void read.push(String(member)) })
    const name = {
      toString() {
        read.push('name')
        return 'converted'
      },
    }
    await assert.rejects(loose(locks)(name, options, 'no function'), TypeError)
    assert.deepEqual(read, ['name', 'ifAvailable', 'mode', 'signal', 'steal'])
  })

  test('a name is converted to a string', async ({ locks }) => {
    const names: [unknown, string][] = [
      [undefined, 'undefined'],
      [null, 'null'],
      [7, '7'],
      [{ toString: () => 'x' }, 'x'],
      [[1, 2], '1,2'],
    ]
    for (const [given, expected] of names) {
      assert.equal(await loose(locks)(given, (lock: Lock) => lock.name), expected)
    }
  })

  test('the promise rejects with what a conversion throws', async ({ locks, name }) => {
    const thrown = new Error('thrown by a conversion')
    const throws = (): never => {
      throw thrown
    }
    await assert.rejects(loose(locks)({ toString: throws }, nothing), thrown)
    await assert.rejects(loose(locks)(Symbol('name'), nothing), TypeError)
    for (const member of ['ifAvailable', 'mode', 'signal', 'steal']) {
      const options = Object.defineProperty({}, member, { get: throws })
      await assert.rejects(loose(locks)(name, options, nothing), thrown)
    }
  })

  test('arguments beyond the third are ignored', async ({ locks, name }) => {
    assert.equal(
      await loose(locks)(
        name,
        {},
        () => 'third',
        () => 'fourth',
      ),
      'third',
    )
  })

  test('called on another object, both methods reject with a TypeError', async ({ locks, name }) => {
    const { request, query } = locks
    await assert.rejects((request as unknown as Loose).call({}, name, nothing), TypeError)
    await assert.rejects(query.call({} as LockManager), TypeError)
  })
}

/** The method's own steps, up to "request a lock". */
export const checks: Section = (test) => {
  test('a name that begins with a hyphen is reserved', async ({ locks }) => {
    for (const name of ['-', '-name', '--']) await rejectsWithName(locks.request(name, nothing), 'NotSupportedError')
    for (const name of ['a-', '\u2010', '_-']) assert.equal(await locks.request(name, (lock) => lock?.name), name)
  })

  test('steal and ifAvailable exclude each other', async ({ locks, name }) => {
    await rejectsWithName(locks.request(name, { steal: true, ifAvailable: true }, nothing), 'NotSupportedError')
  })

  test('`steal` is only for an exclusive lock', async ({ locks, name }) => {
    await rejectsWithName(locks.request(name, { steal: true, mode: 'shared' }, nothing), 'NotSupportedError')
  })

  test('a signal cannot be combined with steal or ifAvailable', async ({ locks, name }) => {
    const { signal } = new AbortController()
    await rejectsWithName(locks.request(name, { signal, steal: true }, nothing), 'NotSupportedError')
    await rejectsWithName(locks.request(name, { signal, ifAvailable: true }, nothing), 'NotSupportedError')
    assert.equal(await locks.request(name, { signal, steal: false, ifAvailable: false }, () => 'called'), 'called')
  })

  test('a signal that has been aborted rejects with its own reason, and the callback is not called', async ({
    locks,
    name,
  }) => {
    let calls = 0
    const called = (): void => {
      calls += 1
    }
    const request = (signal: AbortSignal): Promise<void> => locks.request(name, { signal }, called)
    await rejectsWithName(request(AbortSignal.abort()), 'AbortError')
    const reason = { any: 'value' }
    await request(AbortSignal.abort(reason)).then(
      () => assert.fail('it was granted'),
      (rejected: unknown) => assert.equal(rejected, reason),
    )
    await request(AbortSignal.abort('a string')).catch((rejected: unknown) => assert.equal(rejected, 'a string'))
    assert.equal(calls, 0)
  })

  test('conversions come first, then unsupported options, then an aborted signal', async ({ locks, name }) => {
    const signal = AbortSignal.abort()
    await rejectsWithName(locks.request('-', { signal }, nothing), 'NotSupportedError')
    await rejectsWithName(locks.request(name, { signal, steal: true }, nothing), 'NotSupportedError')
    await assert.rejects(loose(locks)('-', { signal, mode: 'foo' }, nothing), TypeError)
    await assert.rejects(loose(locks)('-', { signal }, null), TypeError)
  })

  test('a request that these steps reject leaves nothing behind', async ({ locks, name }) => {
    await assert.rejects(locks.request(name, { steal: true, ifAvailable: true }, nothing))
    await assert.rejects(locks.request(name, { signal: AbortSignal.abort() }, nothing))
    assert.deepEqual(await locks.query(), { held: [], pending: [] })
  })
}
