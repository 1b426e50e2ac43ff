import { expect, it } from 'vitest'
import type { Driver, DriverListener } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'

async function lossMs(leases: number): Promise<number> {
  const inner = memoryDriver({ store: createMemoryStore() })
  let listener: DriverListener | undefined
  const driver: Driver = {
    ...inner,
    capabilities: { ...inner.capabilities, expiry: 'session', queue: false },
    renew: async (renewals) => renewals.map(() => 'held'),
    async listen(each) {
      listener = each
      return async () => {}
    },
  }
  const lock = new DistributedLock({ driver })
  await Promise.all(Array.from({ length: leases }, (_, at) => lock.hold(`name ${at}`)))
  const claims = (await inner.inspect({ pageSize: 10_000 })).leases.map(({ claimId }) => claimId)
  const startedMs = performance.now()
  for (const claimId of claims) listener?.lost(claimId, new Error('the connection has ended'))
  const tookMs = performance.now() - startedMs
  await lock.close()
  return tookMs
}

it('rule 13: the loss of a session with n leases does not cost n²', { timeout: 60_000 }, async () => {
  await lossMs(500)
  const [few, many] = [await lossMs(1_000), await lossMs(8_000)]
  expect(many).toBeLessThan(Math.max(few, 50) * 16)
})

it('rule 13: n restored leases do not cost n²', { timeout: 60_000 }, async () => {
  const restoreMs = async (leases: number): Promise<number> => {
    const store = createMemoryStore()
    const a = new DistributedLock({ driver: memoryDriver({ store }) })
    const b = new DistributedLock({ driver: memoryDriver({ store }) })
    const texts: string[] = []
    for (let at = 0; at < leases; at += 1) texts.push(await (await a.hold(`name ${at}`)).serialize())
    const startedMs = performance.now()
    for (const text of texts) await b.restore(text)
    const tookMs = performance.now() - startedMs
    await b.close()
    return tookMs
  }
  await restoreMs(500)
  const [few, many] = [await restoreMs(1_000), await restoreMs(8_000)]
  expect(many).toBeLessThan(Math.max(few, 50) * 16)
})
