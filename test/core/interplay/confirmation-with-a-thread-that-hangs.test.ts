import { afterAll, beforeAll, expect, it } from 'vitest'
// The built package: a worker thread on Node 20 cannot load TypeScript.
import { DistributedLock } from '../../../dist/index.js'
import { openRemoteMemory, serveInThread } from '../../harness/remote-memory.mjs'

const MODULE = new URL('./blocked-thread-driver.mjs', import.meta.url).href
let server: Awaited<ReturnType<typeof serveInThread>>

beforeAll(async () => {
  server = await serveInThread()
})
afterAll(() => server.stop())

it('the end of a nested use is bounded by the time of a call, not by half of the TTL', async () => {
  const driver = await openRemoteMemory(server.port)
  const reopen = { module: MODULE, name: 'openBlocked', args: [] }
  const lock = new DistributedLock({ driver: { ...driver, extensions: { reopen } }, heartbeatThread: true })
  let tookMs = 0
  await lock.withLock(
    'name',
    async () => {
      const startedMs = performance.now()
      await lock.withLock('name', () => undefined)
      tookMs = performance.now() - startedMs
    },
    { timeoutSeconds: 24 },
  )
  await lock.close()
  await driver.close()
  expect(tookMs).toBeLessThan(7_000)
})
