import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { DistributedLock } from '../../../dist/index.js'
import { openRemoteMemory, serveInThread } from '../../harness/remote-memory.mjs'

function block(ms: number): void {
  const untilMs = performance.now() + ms
  while (performance.now() < untilMs);
}

const nextTurn = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve))

describe('failure 80: an answer in the buffer counts, although the event loop was blocked for longer than', () => {
  let server: Awaited<ReturnType<typeof serveInThread>>

  beforeAll(async () => {
    server = await serveInThread()
  })
  afterAll(() => server.stop())

  const open = async (options: { callTimeoutSeconds?: number }) => {
    const driver = await openRemoteMemory(server.port)
    const lock = new DistributedLock({ driver, ...options })
    await lock.ping()
    return {
      lock,
      async [Symbol.asyncDispose]() {
        await lock.close()
        await driver.close()
      },
    }
  }

  it('the caller waits for the lock', async () => {
    await using scene = await open({})
    for (let round = 0; round < 5; round += 1) {
      const asked = scene.lock.acquire(`waits ${round}`, { blockingTimeoutSeconds: 0.1 })
      await nextTurn() // The request has left.
      block(200)
      expect(await asked).toMatchObject({ acquired: true })
    }
  })

  it('a call may take', async () => {
    await using scene = await open({ callTimeoutSeconds: 0.1 })
    for (let round = 0; round < 5; round += 1) {
      const asked = scene.lock.acquire(`call ${round}`)
      await nextTurn()
      block(200)
      expect(await asked).toMatchObject({ acquired: true })
      const shown = scene.lock.inspect(`call ${round}`)
      await nextTurn()
      block(200)
      expect((await shown).leases).toHaveLength(1)
    }
  })
})
