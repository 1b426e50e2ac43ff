import assert from 'node:assert/strict'
import { describe, it } from 'vitest'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { Lock, LockManager, WebLocks } from '../../../src/primitives/web-locks/web-locks.ts'

/**
 * The interfaces as WebIDL defines them from the IDL of the specification:
 *
 *     interface LockManager {
 *       Promise<any> request(DOMString name, LockGrantedCallback callback);
 *       Promise<any> request(DOMString name, LockOptions options, LockGrantedCallback callback);
 *       Promise<LockManagerSnapshot> query();
 *     };
 *     interface Lock {
 *       readonly attribute DOMString name;
 *       readonly attribute LockMode mode;
 *     };
 *
 * Of the interface objects only what is a property of the global object is left out.
 */
const interfaces = [
  { type: LockManager, name: 'LockManager', operations: { request: 2, query: 0 }, attributes: [], extensions: [] },
  {
    type: Lock,
    name: 'Lock',
    operations: {},
    attributes: ['name', 'mode'],
    // A lock of a store can be lost, which a lock of a browser cannot. A callback receives nothing else that could
    // notice that, or that a resource could check. They are not enumerable, as no attribute of WebIDL is.
    extensions: ['fencingToken', 'signal'],
  },
] as const

const keysOf = (object: object): unknown[] =>
  Reflect.ownKeys(object).map((key) => (typeof key === 'symbol' ? key : key))

const fixed = { writable: false, enumerable: false, configurable: true }

/** An instance of each interface, while the lock is held. */
async function withInstances(test: (instances: { LockManager: LockManager; Lock: Lock }) => unknown): Promise<void> {
  await using web = new WebLocks({ driver: memoryDriver() })
  await web.locks.request('name', (lock) => test({ LockManager: web.locks, Lock: lock as Lock }))
}

for (const { type, name, operations, attributes, extensions } of interfaces) {
  const prototype = type.prototype as object
  const read = (member: string, target: unknown): unknown => Reflect.get(prototype, member, target)

  describe(`the interface object ${name}`, () => {
    it('is a function whose prototype is Function.prototype', () => {
      assert.equal(typeof type, 'function')
      assert.equal(Object.getPrototypeOf(type), Function.prototype)
    })

    it('has its name, its length and its prototype as properties, and no others', () => {
      assert.deepEqual(keysOf(type).sort(), ['length', 'name', 'prototype'])
      assert.deepEqual(Object.getOwnPropertyDescriptor(type, 'name'), { value: name, ...fixed })
      assert.deepEqual(Object.getOwnPropertyDescriptor(type, 'length'), { value: 0, ...fixed })
      assert.deepEqual(Object.getOwnPropertyDescriptor(type, 'prototype'), {
        value: prototype,
        ...fixed,
        configurable: false,
      })
    })

    it('can neither be called nor be used as a constructor', () => {
      assert.throws(() => Reflect.apply(type as unknown as () => void, undefined, []), TypeError)
      assert.throws(() => Reflect.construct(type, []), TypeError)
      assert.throws(() => Reflect.construct(type, [{}, {}, {}, {}]), TypeError)
    })
  })

  describe(`the interface prototype object of ${name}`, () => {
    it('has Object.prototype as its prototype', () => {
      assert.equal(Object.getPrototypeOf(prototype), Object.prototype)
    })

    it('has the members of the IDL and the documented extensions, and no others', () => {
      const members = ['constructor', ...Object.keys(operations), ...attributes, ...extensions]
      const [strings, symbols] = [Object.getOwnPropertyNames(prototype), Object.getOwnPropertySymbols(prototype)]
      assert.deepEqual(strings.sort(), members.sort())
      assert.deepEqual(symbols, [Symbol.toStringTag])
    })

    it('enumerates the members of the IDL alone', () => {
      assert.deepEqual(Object.keys(prototype).sort(), [...Object.keys(operations), ...attributes].sort())
    })

    it('has its constructor and its class string', () => {
      assert.deepEqual(Object.getOwnPropertyDescriptor(prototype, 'constructor'), {
        value: type,
        writable: true,
        enumerable: false,
        configurable: true,
      })
      const tag = Object.getOwnPropertyDescriptor(prototype, Symbol.toStringTag)
      assert.deepEqual(tag, { value: name, ...fixed })
      assert.equal(String(prototype), `[object ${name}]`)
    })
  })

  describe(`an instance of ${name}`, () => {
    it('has the interface prototype object as its prototype, and no properties of its own', () =>
      withInstances((instances) => {
        assert.equal(Object.getPrototypeOf(instances[name]), prototype)
        assert.ok(instances[name] instanceof type)
        assert.deepEqual(keysOf(instances[name]), [])
        assert.equal(String(instances[name]), `[object ${name}]`)
      }))
  })

  for (const [operation, length] of Object.entries(operations)) {
    describe(`the operation ${name}.${operation}`, () => {
      const descriptor = Object.getOwnPropertyDescriptor(prototype, operation) as PropertyDescriptor
      const { value } = descriptor as { value: (...args: unknown[]) => Promise<unknown> }

      it('is a writable, enumerable and configurable method', () => {
        assert.deepEqual(descriptor, { value, writable: true, enumerable: true, configurable: true })
      })

      it('is a function with its name and the number of required arguments, and no constructor', () => {
        assert.equal(Object.getPrototypeOf(value), Function.prototype)
        assert.deepEqual(Object.getOwnPropertyDescriptor(value, 'name'), { value: operation, ...fixed })
        assert.deepEqual(Object.getOwnPropertyDescriptor(value, 'length'), { value: length, ...fixed })
        assert.deepEqual(keysOf(value).sort(), ['length', 'name'])
        assert.throws(() => Reflect.construct(value, []), TypeError)
      })

      it('called on another object, returns a promise that rejects with a TypeError', async () => {
        for (const target of [undefined, null, {}, prototype]) {
          const returned = Reflect.apply(value, target, ['name', () => {}])
          assert.equal(Object.getPrototypeOf(returned), Promise.prototype)
          await assert.rejects(returned, TypeError)
        }
      })

      it('with too few arguments, rejects with a TypeError before it converts any', () =>
        withInstances(async (instances) => {
          const unread = { toString: () => assert.fail('converted') }
          for (let count = 0; count < length; count += 1) {
            const returned = Reflect.apply(value, instances[name], Array(count).fill(unread))
            assert.equal(Object.getPrototypeOf(returned), Promise.prototype)
            await assert.rejects(returned, TypeError)
          }
        }))
    })
  }

  for (const attribute of attributes) {
    describe(`the attribute ${name}.${attribute}`, () => {
      const descriptor = Object.getOwnPropertyDescriptor(prototype, attribute) as PropertyDescriptor
      const { get } = descriptor as { get: () => unknown }

      it('is an enumerable and configurable accessor without a setter', () => {
        assert.deepEqual(descriptor, { get, set: undefined, enumerable: true, configurable: true })
      })

      it('has a getter with its name and no arguments', () => {
        assert.deepEqual(Object.getOwnPropertyDescriptor(get, 'name'), { value: `get ${attribute}`, ...fixed })
        assert.deepEqual(Object.getOwnPropertyDescriptor(get, 'length'), { value: 0, ...fixed })
      })

      it('read on another object, throws a TypeError', () => {
        for (const target of [{}, prototype]) assert.throws(() => read(attribute, target), TypeError)
      })

      it('cannot be assigned, and is a string', () =>
        withInstances((instances) => {
          assert.equal(Reflect.set(instances[name], attribute, 'another'), false)
          assert.equal(typeof read(attribute, instances[name]), 'string')
        }))
    })
  }
}

it('request and query return promises of the platform, and query resolves with dictionaries', () =>
  withInstances(async ({ LockManager: locks }) => {
    const [requested, queried] = [locks.request('other', () => 7), locks.query()]
    for (const returned of [requested, queried]) assert.equal(Object.getPrototypeOf(returned), Promise.prototype)
    assert.equal(await requested, 7)
    const snapshot = await queried
    assert.equal(Object.getPrototypeOf(snapshot), Object.prototype)
    assert.deepEqual(Object.keys(snapshot).sort(), ['held', 'pending'])
    assert.ok(Array.isArray(snapshot.held) && Array.isArray(snapshot.pending))
    for (const info of snapshot.held) {
      assert.equal(Object.getPrototypeOf(info), Object.prototype)
      assert.deepEqual(Object.keys(info).sort(), ['clientId', 'mode', 'name'])
    }
  }))
