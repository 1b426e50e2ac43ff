import { afterAll, beforeAll, expect, it } from 'vitest'
// The built package: a worker thread on Node 20 cannot load TypeScript.
import { DistributedLock } from '../../../dist/index.js'
import { openRemoteMemory, serveInThread } from '../../harness/remote-memory.mjs'

let server: Awaited<ReturnType<typeof serveInThread>>
beforeAll(async () => {
  server = await serveInThread()
})
afterAll(() => server.stop())

function blockEventLoop(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
}

it.each([false, true])(
  'rule 16: withLock rejects if the thread finds a forced release at its end (event loop blocked: %s)',
  async (isBlocked) => {
    const driver = await openRemoteMemory(server.port)
    const otherDriver = await openRemoteMemory(server.port)
    const lock = new DistributedLock({ driver, heartbeatThread: true, reacquire: 'extend' })
    const operator = new DistributedLock({ driver: otherDriver })
    const name = `name ${isBlocked}`
    const second = await lock.hold(name, { timeoutSeconds: 12 })
    const reasons: string[] = []
    lock.on('lost', ({ reason }) => reasons.push(reason))
    // The thread has loaded its code.
    await new Promise((resolve) => setTimeout(resolve, 700))
    const work = lock.withLock(name, async () => {
      const [ended] = await operator.forceRelease(name, { by: 'ada' })
      expect(ended?.fencingToken).toBe(second.fencingToken)
      // After the end of this use has sent its question.
      setImmediate(() => {
        if (isBlocked) blockEventLoop(300)
        // As any code does that runs under the other use, or a timer.
        void second.held
      })
    })
    const end = await work.then(
      () => 'resolved',
      ({ code }) => code,
    )
    expect({ end, reasons }).toEqual({ end: 'LEASE_LOST', reasons: ['missing'] })
    await Promise.all([lock.close(), operator.close()])
    await Promise.all([driver.close(), otherDriver.close()])
  },
)
