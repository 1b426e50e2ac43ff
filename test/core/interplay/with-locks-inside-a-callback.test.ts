import { expect, it } from 'vitest'
import { type Fault, gate, setUp, watched } from './helper.ts'

it('withLocks that has entered locks reports contention in its time, also if they cannot be confirmed', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, other } = setUp(fault)
  await other.acquire('taken', { timeoutSeconds: 1_000 })
  const names = ['a', 'b', 'c', 'd']
  const seen = { code: '', tookMs: 0 }
  const work = lock.withLocks(
    names,
    async () => {
      fault.now = (method) => (method === 'renew' ? { hangs: 'request' } : undefined)
      const startedMs = time.nowMs
      await lock
        .withLocks([...names, 'taken'], () => undefined, { blockingTimeoutSeconds: 1 })
        .catch(({ code }) => {
          seen.code = code
        })
      seen.tookMs = time.nowMs - startedMs
    },
    { timeoutSeconds: 100 },
  )
  const outer = watched(work)
  await time.run(60_000)
  expect(seen).toEqual({ code: 'NOT_ACQUIRED', tookMs: expect.closeTo(1_250, -2) })
  expect(outer.state).toBe('resolved')
})

it('a deadlock through withLocks that nothing awaits, but that has entered the lock around it, is found', async () => {
  const { time, lock, other } = setUp({ now: undefined })
  const both = gate()
  const codes: string[] = []
  const note = ({ code }: { code: string }): void => void codes.push(code)
  watched(
    lock.withLock('x', async () => {
      await both.opened
      lock.withLocks(['x', 'y'], () => undefined, { blockingTimeoutSeconds: 60 }).catch(note)
    }),
  )
  watched(
    other.withLock('y', async () => {
      await both.opened
      await other.withLock('x', () => undefined, { blockingTimeoutSeconds: 60 }).catch(note)
    }),
  )
  await time.run(10)
  both.open()
  await time.run(20_000)
  expect(codes).toEqual(['DEADLOCK'])
})
