import { afterAll, beforeAll, expect, it } from 'vitest'
// The built package: a worker thread on Node 20 cannot load TypeScript.
import { DistributedLock } from '../../../dist/index.js'
import { openRemoteMemory, serveInThread } from '../../harness/remote-memory.mjs'

const MODULE = new URL('./late-confirmation-driver.mjs', import.meta.url).href
let server: Awaited<ReturnType<typeof serveInThread>>
beforeAll(async () => {
  server = await serveInThread()
})
afterAll(() => server.stop())

it('rule 2: a late confirmation of the thread after maxHoldSeconds ends no lease unnoticed', async () => {
  const began = performance.now()
  const at = (ms: number): Promise<void> =>
    new Promise((resolve) => setTimeout(resolve, Math.max(0, began + ms - performance.now())))
  const driver = await openRemoteMemory(server.port)
  const reopen = { module: MODULE, name: 'openLate', args: [server.port, 2_900, 3_800] }
  const lock = new DistributedLock({
    driver: { ...driver, extensions: { reopen } },
    heartbeatThread: true,
    reacquire: 'extend',
  })
  const rival = new DistributedLock({ driver })
  const lease = await lock.hold('name', { timeoutSeconds: 3, maxHoldSeconds: 1 })
  await at(1_600)
  // Its end asks the store, through the thread, for no more than what is left of the lease: about 2 s. That request
  // reaches the store at about 5.4 s.
  const second = await lock.hold('name', { timeoutSeconds: 0.05, heartbeat: false })
  second.release().catch(() => undefined)
  const seen: { atMs: number; held: boolean; rival: boolean }[] = []
  // The main thread takes the lease back at about 2.5 s.
  for (const ms of [2_800, 4_000, 5_200]) {
    await at(ms)
    expect(await lease.extend(60)).toBe(true)
  }
  for (let ms = 5_600; ms <= 8_600; ms += 100) {
    await at(ms)
    const { acquired } = await rival.acquire('name', { timeoutSeconds: 60 })
    seen.push({ atMs: Math.round(performance.now() - began), held: lease.held, rival: acquired })
    if (acquired) break
  }
  expect(seen.filter(({ held, rival: isHeldByRival }) => held && isHeldByRival)).toEqual([])
  await lock.close()
  await rival.close()
  await driver.close()
}, 30_000)
