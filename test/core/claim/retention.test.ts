import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, it } from 'vitest'
import { systemRandom } from '../../../src/core/time/random.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

it('rule 13: an instance that is dropped without being closed is collected, although its driver lives on', async () => {
  const driver = memoryDriver()
  await using other = new DistributedLock({ driver })
  await other.acquire('taken', { timeoutSeconds: 600 })
  const dropped: WeakRef<object>[] = []
  const use = async (name: string): Promise<void> => {
    // Everything inside the instance refers to it.
    const random = { ...systemRandom }
    const lock = new DistributedLock({ driver, random })
    dropped.push(new WeakRef(lock), new WeakRef(random))
    await lock.withLock(name, async () => {
      await lock.withLock('inner', () => undefined, { blocking: true })
      // It waits, and so is known to the registry of waiters for a while.
      await lock.acquire('taken', { blockingTimeoutSeconds: 0.001 })
    })
  }
  for (let each = 0; each < 200; each += 1) await use(`name ${each}`)
  const alive = (): number => dropped.filter((each) => each.deref() !== undefined).length
  // A timer of the scheduler that found nothing to do may still refer to the last ones for a second.
  for (let tries = 0; tries < 30 && alive() > 0; tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 100))
    collectGarbage()
  }
  expect(alive()).toBeLessThanOrEqual(2)
  await driver.close()
})
