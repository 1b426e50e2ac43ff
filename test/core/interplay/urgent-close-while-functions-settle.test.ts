import { expect, it } from 'vitest'
import { DistributedLock } from '../../../src/index.ts'
import { gate, setUp, watched } from './helper.ts'

it.each([false, true])(
  'a more urgent close releases the leases of functions that have not settled (another instance on the driver: %s)',
  async (isShared) => {
    const { time, lock, other, driver, settings } = setUp({ now: undefined })
    if (isShared) await new DistributedLock({ ...settings, driver }).acquire('unrelated')
    const end = gate()
    const work = watched(lock.withLock('name', () => end.opened))
    await time.run(10)
    const first = watched(lock.close({ deadlineSeconds: 600 }))
    await time.run(100)
    const second = watched(lock.close({ deadlineSeconds: 1 }))
    await time.run(2_000)
    expect([first.state, second.state]).toEqual(['resolved', 'resolved'])
    const free = (await other.acquire('name')).acquired
    await time.run(120_000)
    expect({ free, freeAfter2Minutes: (await other.acquire('name')).acquired }).toEqual({
      free: true,
      freeAfter2Minutes: true,
    })
    end.open()
    await time.run(10)
    expect(work.state).toBe('rejected')
  },
)
