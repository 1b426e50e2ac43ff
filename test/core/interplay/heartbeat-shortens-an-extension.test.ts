import { describe, expect, it } from 'vitest'
import { setUp } from './helper.ts'

describe('a heartbeat never shortens what was promised', () => {
  it('extend(600) is still 600 s long after the next heartbeat', async () => {
    const { time, lock } = setUp({ now: undefined })
    const lease = await lock.hold('name', { timeoutSeconds: 30 })
    expect(await lease.extend(600)).toBe(true)
    const promised = lease.expiresAt.getTime()
    await time.run(6_000)
    expect(lease.expiresAt.getTime()).toBeGreaterThanOrEqual(promised - 10)
  })

  it('extend(600) is still 600 s long after a nested withLock', async () => {
    const { time, lock } = setUp({ now: undefined })
    await lock.withLock('name', async (lease) => {
      await lease.extend(600)
      const promised = lease.expiresAt.getTime()
      await lock.withLock('name', async () => undefined)
      await time.run(10)
      expect(lease.expiresAt.getTime()).toBeGreaterThanOrEqual(promised - 10)
    })
  })

  it('reacquire: extend with a TTL of 600 s is held for 600 s beside a use with maxHoldSeconds', async () => {
    const { time, lock, other } = setUp({ now: undefined }, { reacquire: 'extend' })
    await lock.hold('name', { timeoutSeconds: 30, maxHoldSeconds: 20 })
    const second = await lock.acquire('name', { timeoutSeconds: 600 })
    if (!second.acquired) throw new Error('not acquired')
    await time.run(120_000)
    expect({ held: second.lock.held, rival: (await other.acquire('name')).acquired }).toEqual({
      held: true,
      rival: false,
    })
  })
})
