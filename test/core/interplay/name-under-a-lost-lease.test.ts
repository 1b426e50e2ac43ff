import { expect, it } from 'vitest'
import { gate, setUp, watched } from './helper.ts'

it('rule 7: a release by name inside a function whose lease has expired touches no other lease', async () => {
  const { time, lock, other } = setUp({ now: undefined })
  const end = gate()
  const one = watched(
    lock.withLock(
      'name',
      async () => {
        try {
          await end.opened
        } finally {
          expect(await lock.release('name')).toBe(false)
        }
      },
      { timeoutSeconds: 1, heartbeat: false },
    ),
  )
  await time.run(2_000)
  const two = watched(lock.withLock('name', () => new Promise<void>((resolve) => void time.in(3_000, resolve))))
  await time.run(10)
  end.open()
  await time.run(10)
  expect((await other.acquire('name')).acquired).toBe(false)
  await time.run(5_000)
  expect(one.error).toMatchObject({ code: 'LEASE_LOST' })
  expect(two.state).toBe('resolved')
})
