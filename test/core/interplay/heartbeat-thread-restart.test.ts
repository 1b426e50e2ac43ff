import { afterAll, beforeAll, expect, it } from 'vitest'
// The built package: a worker thread on Node 20 cannot load TypeScript.
import { DistributedLock } from '../../../dist/index.js'
import { openRemoteMemory, serveInThread } from '../../harness/remote-memory.mjs'

let server: Awaited<ReturnType<typeof serveInThread>>
beforeAll(async () => {
  server = await serveInThread()
})
afterAll(() => server.stop())

it('a heartbeat thread renews for a re-acquisition after the first use with a heartbeat has ended', async () => {
  const driver = await openRemoteMemory(server.port)
  const lock = new DistributedLock({ driver, heartbeatThread: true, reacquire: 'extend' })
  const first = await lock.hold('name', { timeoutSeconds: 1 })
  await lock.acquire('name', { timeoutSeconds: 1 })
  // The heartbeat ends with the only use that has one.
  expect(await first.release()).toBe(true)
  const work = lock.withLock(
    'name',
    async ({ signal }) => {
      await new Promise((resolve) => setTimeout(resolve, 2_500))
      return signal.aborted ? 'lost' : 'held'
    },
    { timeoutSeconds: 1 },
  )
  await expect(work).resolves.toBe('held')
  await lock.close()
  await driver.close()
})
