import { expect, it } from 'vitest'
import { setUp } from './helper.ts'

/** How long `count` re-acquisitions of one lease take that are made at once. */
async function join(count: number): Promise<number> {
  const { time, lock } = setUp({ now: undefined }, { reacquire: 'extend' })
  await lock.hold('name', { timeoutSeconds: 30, heartbeat: false })
  const startedMs = performance.now()
  const work = Promise.all(Array.from({ length: count }, () => lock.acquire('name', { timeoutSeconds: 60 })))
  await time.run(1_000)
  expect((await work).every(({ acquired }) => acquired)).toBe(true)
  return performance.now() - startedMs
}

it('the cost of many re-acquisitions at once does not grow with the square of their number', async () => {
  const fewMs = Math.min(await join(4_000), await join(4_000))
  const manyMs = await join(32_000)
  // Eight times as many. A square would be 64 times as long.
  expect(manyMs / fewMs).toBeLessThan(16)
}, 120_000)
