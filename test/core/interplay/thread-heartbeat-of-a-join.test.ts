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

it.each([true, false])(
  'rule 4: heartbeatThread keeps the lease of a function that blocks (acquired with a heartbeat: %s)',
  async (heartbeat) => {
    const driver = await openRemoteMemory(server.port)
    const lock = new DistributedLock({ driver, heartbeatThread: true, reacquire: 'extend' })
    const name = `name ${heartbeat}`
    await lock.acquire(name, { timeoutSeconds: 2, heartbeat })
    const work = lock.withLock(
      name,
      async ({ signal }) => {
        await new Promise((resolve) => setTimeout(resolve, 900))
        blockEventLoop(2_600)
        return signal.aborted
      },
      { timeoutSeconds: 2 },
    )
    await expect(work).resolves.toBe(false)
    await lock.close()
    await driver.close()
  },
)
