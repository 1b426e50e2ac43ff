import { afterAll, beforeAll, describe, expect, it } from 'vitest'
// The built package: a worker thread on Node 20 cannot load TypeScript.
import { DistributedLock } from '../../../dist/index.js'
import { openRemoteMemory, serveInThread } from '../../harness/remote-memory.mjs'

const MODULE = new URL('./blocked-thread-driver.mjs', import.meta.url).href
let server: Awaited<ReturnType<typeof serveInThread>>
beforeAll(async () => {
  server = await serveInThread()
})
afterAll(() => server.stop())

/** A lease whose heartbeat thread is blocked in a renewal. */
async function holdWithBlockedThread(name: string, options: { minHoldSeconds?: number } = {}) {
  const driver = await openRemoteMemory(server.port)
  const reopen = { module: MODULE, name: 'openBlocked', args: [] }
  const lock = new DistributedLock({
    driver: { ...driver, extensions: { reopen } },
    heartbeatThread: true,
    callTimeoutSeconds: 1,
  })
  const lease = await lock.hold(name, { timeoutSeconds: 40, ...options })
  const extended = lease.extend(60).then(
    () => 'extended',
    (error: Error) => error.name,
  )
  // Until the thread has loaded its code and is blocked.
  await new Promise((resolve) => setTimeout(resolve, 700))
  return { driver, lock, lease, extended }
}

describe.concurrent('with a heartbeat thread that hangs', () => {
  it('an extension has the time of a call', async () => {
    const { lock, driver, extended } = await holdWithBlockedThread('extension')
    expect(await extended).toBe('StoreError')
    await lock.close()
    await driver.close()
  })

  it('a lease with minHoldSeconds is released', async () => {
    const { lock, lease, driver } = await holdWithBlockedThread('minimum', { minHoldSeconds: 2 })
    expect(await lease.release()).toBe(true)
    await lock.close()
    await driver.close()
  })

  it('a lease is handed over', async () => {
    const { lock, lease, driver } = await holdWithBlockedThread('hand-over')
    const text = await lease.serialize()
    expect(text).toContain('holdfast-lease')
    await lock.close()
    await driver.close()
  })

  it('close ends in its time, and what waits for the thread is settled', async () => {
    const { lock, lease, driver } = await holdWithBlockedThread('close', { minHoldSeconds: 2 })
    const released = lease.release().then(
      () => 'settled',
      () => 'settled',
    )
    await lock.close({ deadlineSeconds: 0.2 })
    expect(await released).toBe('settled')
    await driver.close()
  })
})
