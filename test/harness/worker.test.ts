import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import { until } from './processes.ts'
import { startWorker } from './worker.ts'

const repository = fileURLToPath(new URL('../..', import.meta.url))

describe.concurrent('worker processes', () => {
  test('a worker answers calls of the functions that its source exposes, and can import', async () => {
    await using worker = await startWorker({
      source: `import { basename } from 'node:path'
        expose({ name: async (path) => ({ name: basename(path), pid: process.pid }) })
        console.log('to stdout'); console.error('to stderr')`,
    })
    expect(await worker.call('name', '/a/b')).toEqual({ name: 'b', pid: worker.pid })
    await until(() => worker.stdout === 'to stdout\n' && worker.stderr === 'to stderr\n', {
      timeoutMs: 10_000,
      failure: () => `captured ${worker.stdout} and ${worker.stderr}`,
    })
  })

  test('a worker answers calls of the functions that its module exports', async () => {
    await using worker = await startWorker({ module: join(repository, 'test/harness/fixtures/counter.mjs') })
    await worker.call('add', 2)
    expect(await worker.call('add', 3)).toBe(5)
  })

  test('a call rejects with the name, message and code of the worker’s error', async () => {
    await using worker = await startWorker({
      source: `expose({ fail() { throw Object.assign(new RangeError('too far'), { code: 'FAR' }) } })`,
    })
    await expect(worker.call('fail')).rejects.toMatchObject({ name: 'RangeError', message: 'too far', code: 'FAR' })
    await expect(worker.call('missing')).rejects.toThrow('exposes no function missing')
  })

  test('source that does not load rejects with the output of Node', async () => {
    await expect(startWorker({ source: `import 'no-such-module'` })).rejects.toThrow(/no-such-module/)
  })

  test('a killed worker rejects the call that is in flight', async () => {
    await using worker = await startWorker({ source: 'expose({ hang: () => new Promise(() => {}) })' })
    const hanging = worker.call('hang')
    hanging.catch(() => {})
    await worker.kill()
    await expect(hanging).rejects.toThrow('SIGKILL')
    expect(await worker.exited).toEqual({ code: null, signal: 'SIGKILL' })
  })

  test('a paused worker does not answer until it is resumed', async () => {
    await using worker = await startWorker({ source: 'expose({ ping: () => 1 })' })
    await worker.pause()
    let isAnswered = false
    const asked = worker.call('ping').finally(() => {
      isAnswered = true
    })
    await new Promise((resolve) => setTimeout(resolve, 100)) // A running worker answers within a few milliseconds.
    expect(isAnswered).toBe(false)
    worker.resume()
    expect(await asked).toBe(1)
  })
})
