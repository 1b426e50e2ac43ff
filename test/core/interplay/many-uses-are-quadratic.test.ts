import { expect, it } from 'vitest'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'

/** Before the uses were counted in one list, 10,000 took 40 ms. */
it('the cost of the end of a use does not grow with the number of uses', async () => {
  // Eight times as many uses. A quadratic cost is 64 times as much in every round, on a busy machine, too.
  const growth: number[] = []
  while (growth.length < 5 && !growth.some((each) => each < 16)) {
    const few = await timeOf(2_500)
    growth.push((await timeOf(20_000)) / few)
  }
  expect(Math.min(...growth)).toBeLessThan(16)
}, 60_000)

async function timeOf(count: number): Promise<number> {
  const lock = new DistributedLock({ driver: memoryDriver(), reacquire: 'extend' })
  const uses = []
  for (let at = 0; at < count; at += 1) uses.push(await lock.hold('name'))
  const startedMs = performance.now()
  await Promise.all(uses.map((use) => use.release()))
  return performance.now() - startedMs
}
