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

it('rules 2 and 4: an extension that waits does not let the lease move to the heartbeat thread', async () => {
  const began = performance.now()
  const at = (ms: number): Promise<void> =>
    new Promise((resolve) => setTimeout(resolve, Math.max(0, began + ms - performance.now())))
  const driver = await openRemoteMemory(server.port)
  const lock = new DistributedLock({
    driver: {
      ...driver,
      // The answers to the main thread's renewals take 400 ms.
      renew: async (renewals: never) => {
        const answers = await driver.renew(renewals)
        await new Promise((resolve) => setTimeout(resolve, 400))
        return answers
      },
    },
    heartbeatThread: true,
    reacquire: 'extend',
  })
  const rival = new DistributedLock({ driver })
  const first = await lock.hold('name', { timeoutSeconds: 30, heartbeat: false })
  await at(100)
  // Answered at 500 ms. Then the lease is to move to the thread.
  const second = lock.hold('name', { timeoutSeconds: 30 })
  await at(300)
  // Its confirmation is answered at 700 ms. Until then the lease cannot move.
  first.release().catch(() => undefined)
  const lease = await second
  await at(600)
  // Waits for the confirmation, and is sent at 700 ms.
  const extended = lease.extend(1)
  await at(850)
  blockEventLoop(2_500)
  const { held } = lease
  const { acquired } = await rival.acquire('name')
  expect({ held, acquired }).not.toEqual({ held: true, acquired: true })
  await extended
  await lock.close()
  await rival.close()
  await driver.close()
})
