import { afterAll, beforeAll, expect, it } from 'vitest'
// The built package: a worker thread on Node 20 cannot load TypeScript.
import { DistributedLock } from '../../../dist/index.js'
import { openRemoteMemory, serveInThread } from '../../harness/remote-memory.mjs'

let server: Awaited<ReturnType<typeof serveInThread>>
beforeAll(async () => {
  server = await serveInThread()
})
afterAll(() => server.stop())

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

it.each([false, { stalledAfterSeconds: 30 }])(
  'an extension that was answered holds after the last use with a heartbeat has ended (heartbeatThread: %o)',
  async (heartbeatThread) => {
    const driver = await openRemoteMemory(server.port)
    const lock = new DistributedLock({ driver, reacquire: 'extend', ...(heartbeatThread && { heartbeatThread }) })
    const name = `name with ${heartbeatThread && 'a thread'}`
    const first = await lock.hold(name, { timeoutSeconds: 1 })
    const second = await lock.hold(name, { timeoutSeconds: 1, heartbeat: false })
    // The thread has answered everything that it has sent.
    await sleep(500)
    expect(await first.release()).toBe(true)
    await sleep(200)
    expect(await second.extend(60)).toBe(true)
    expect(second.remainingSeconds).toBeGreaterThan(50)
    await sleep(1_200)
    expect(second.held).toBe(true)
    await lock.close()
    await driver.close()
  },
)
