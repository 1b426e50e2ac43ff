import { once } from 'node:events'
import { MessageChannel, Worker } from 'node:worker_threads'
import { assert, describe, it } from 'vitest'
import * as library from '../../src/index.ts'
import {
  DeadlockError,
  HoldfastError,
  InvalidArgumentError,
  LeaseLostError,
  NotAcquiredError,
  StoreError,
} from '../../src/index.ts'

const at = new Date(1_767_225_600_000)
const holder = { lockName: 'job', holderId: 'h', acquiredAt: at, expiresAt: at, fencingToken: 7, metadata: { a: 1 } }

const errors: HoldfastError[] = [
  new LeaseLostError('job', 7, 'it expired'),
  new NotAcquiredError('job', 'it is held', holder),
  new StoreError('it is down', { retryable: false, cause: new Error('no route') }),
  new DeadlockError('they wait for each other', 'job', [{ holderId: 'h', lockName: 'job', heldBy: 'h' }]),
  ...[1n, Symbol('s'), undefined, () => 1, new Map(), Number.NaN].map(
    (value) => new InvalidArgumentError('timeoutSeconds', value, 'a number'),
  ),
]

describe('errors that are sent', () => {
  it('failure 83: an error crosses a message port as it is, and as `toJSON()` with its code', async () => {
    const { port1, port2 } = new MessageChannel()
    for (const error of errors) {
      const received = once(port2, 'message')
      port1.postMessage([error, error.toJSON()])
      const [[clone, plain]] = await received
      // Structured clone keeps only the message and the stack of an Error.
      assert.equal(clone.message, error.message)
      const { name, code, message } = error
      assert.deepInclude(plain, { name, code, message })
    }
    port1.close()
  })

  it('failure 83: an error in JSON, as child processes send it, has its code, its message and what it says', () => {
    for (const error of errors) {
      const { name, code, message } = error
      assert.deepInclude(JSON.parse(JSON.stringify(error)), { name, code, message })
    }
    const sent = JSON.parse(JSON.stringify(new NotAcquiredError('job', 'it is held', holder)))
    assert.equal(sent.lockName, 'job')
    assert.equal(sent.holder.holderId, 'h')
  })

  it('failure 83: an error that ends a worker keeps its code', async () => {
    const entry = JSON.stringify(new URL('../../dist/index.js', import.meta.url).href)
    const source = `import(${entry}).then(({ LeaseLostError }) => { throw new LeaseLostError('job', 7, 'it expired') })`
    const [error] = await once(new Worker(source, { eval: true }), 'error')
    assert.deepInclude(error, { name: 'LeaseLostError', code: 'LEASE_LOST', lockName: 'job' })
    assert.match(error.message, /it expired/)
  })

  it('every class of errors has the method', () => {
    for (const each of Object.values(library)) {
      if (typeof each === 'function' && each.prototype instanceof HoldfastError) assert.ok('toJSON' in each.prototype)
    }
  })
})
