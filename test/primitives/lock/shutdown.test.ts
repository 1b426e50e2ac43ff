import { randomBytes } from 'node:crypto'
import { describe, expect, inject, it } from 'vitest'
import { until } from '../../harness/processes.ts'
import { startProxy } from '../../harness/proxy.ts'
import { startWorker } from '../../harness/worker.ts'

const { redis, postgres = '' } = inject('servers')

const urls: [string, string][] = [
  ['redis', redis?.[0] ?? ''],
  ['postgres', postgres],
  ['postgres-advisory', postgres.replace(/^postgres(ql)?:/, 'postgres+advisory:')],
]

const PATIENCE = { timeoutMs: 30_000, failure: () => 'it did not happen within 30 s' }

/**
 * A service as docs/explanation/concepts.md has it. Its job ends as told: by itself, when it is asked to stop, or
 * never.
 */
const service = (url: string, name: string, close: string) => `
  import { DistributedLock } from 'holdfast'
  const lock = new DistributedLock({ url: ${JSON.stringify(url)} })
  const said = []
  const say = (what) => { said.push(what); console.log(what) }
  let finish
  process.once('SIGTERM', async () => {
    await lock.close(${close})
    say('closed')
    process.exit(0)
  })
  expose({
    async begin() {
      await new Promise((resolve) => {
        lock.withLock(${JSON.stringify(name)}, async ({ signal }) => {
          const told = new Promise((stop) => signal.addEventListener('abort', () => { say('told'); stop() }))
          resolve()
          await Promise.race([told, new Promise((done) => { finish = done })])
          await new Promise((done) => setTimeout(done, 200))
          say('settled')
        }).then(() => say('resolved'), (error) => say('rejected ' + error.code))
      })
    },
    finish: () => finish(),
    async isFree(name) {
      const result = await lock.acquire(name)
      if (result.acquired) await result.lock.release()
      return result.acquired
    },
  })`

describe.concurrent.each(urls)('SIGTERM during withLock, on %s', (_, url) => {
  const name = `shutdown:${randomBytes(6).toString('hex')}`

  it('aborts the signal, releases the lock when the function has settled, and exits within the bound', async () => {
    const lockName = `${name}:told`
    await using worker = await startWorker({ source: service(url, lockName, '{}') })
    await using other = await startWorker({ source: service(url, 'another', '{}') })
    await worker.call('begin')
    expect(await other.call('isFree', lockName)).toBe(false)
    process.kill(worker.pid, 'SIGTERM')
    await until(() => worker.stdout.includes('told'), PATIENCE)
    // In the 200 ms that the function takes to settle. If this comes too late, it checks less, and reports no false
    // error.
    const early = await other.call('isFree', lockName)
    if (early === true) expect(worker.stdout).toContain('settled')
    expect(await worker.exited).toEqual({ code: 0, signal: null })
    expect(worker.stdout.split('\n').slice(0, 3)).toEqual(['told', 'settled', 'rejected LEASE_LOST'])
    expect(await other.call('isFree', lockName)).toBe(true)
  })

  it('with drainSeconds, lets the function finish', async () => {
    const lockName = `${name}:drained`
    await using worker = await startWorker({ source: service(url, lockName, '{ drainSeconds: 30 }') })
    await worker.call('begin')
    process.kill(worker.pid, 'SIGTERM')
    await worker.call('finish')
    expect(await worker.exited).toEqual({ code: 0, signal: null })
    expect(worker.stdout.split('\n').slice(0, 2)).toEqual(['settled', 'resolved'])
  })

  it('exits within the bound although the store has stopped answering', async () => {
    const { hostname, port } = new URL(url)
    await using proxy = await startProxy(Number(port))
    const through = url.replace(`${hostname}:${port}`, `127.0.0.1:${proxy.port}`)
    await using worker = await startWorker({ source: service(through, `${name}:silent`, '{ deadlineSeconds: 1 }') })
    await worker.call('begin')
    proxy.hold('toServer')
    process.kill(worker.pid, 'SIGTERM')
    expect(await worker.exited).toEqual({ code: 0, signal: null })
    // closing.test.ts checks the duration in virtual time. Here the process exits before the store answers.
    expect(worker.stdout).toContain('closed')
    proxy.release('toServer')
  })
})
