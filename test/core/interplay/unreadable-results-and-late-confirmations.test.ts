import { expect, it } from 'vitest'
import { StoreError } from '../../../src/core/errors.ts'
import { OnceOnly } from '../../../src/index.ts'
import { type Fault, gate, setUp, watched } from './helper.ts'

const unhandled: unknown[] = []
process.on('unhandledRejection', (error) => unhandled.push(error))

it('failure 79: a result with a hidden, unreadable `then` is not kept', async () => {
  const { driver, settings, time } = setUp({ now: undefined })
  const jobs = new OnceOnly({ driver, ...settings })
  const result = Object.defineProperty({ a: 1 }, 'then', {
    get() {
      throw new Error('unreadable')
    },
  })
  const first = watched(jobs.once('key', () => result as unknown, { forSeconds: 100 }))
  await time.run(100)
  const second = watched(jobs.once('key', () => 'again' as unknown, { forSeconds: 100 }))
  await time.run(100)
  expect([first.error, second.error]).toMatchObject([{ code: 'RESULT_NOT_KEPT' }, { code: 'RESULT_NOT_KEPT' }])
})

it('failure 86: a listener throws an error of ours whose stack cannot be read', async () => {
  const { lock, time } = setUp({ now: undefined })
  lock.on('acquired', () => {
    throw Object.defineProperty(new StoreError('x'), 'stack', {
      get() {
        throw new Error('unreadable stack')
      },
    })
  })
  const [a, b] = [watched(lock.acquire('a')), watched(lock.acquire('b'))]
  await time.run(100)
  expect([a.state, b.state, unhandled.map(String)]).toEqual(['resolved', 'resolved', []])
})

it('rule 16: a use learns what its confirmation found, although the release of minHoldSeconds fails', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, other } = setUp(fault, { reacquire: 'extend' })
  const [endOne, endTwo] = [gate(), gate()]
  const options = { heartbeat: false, timeoutSeconds: 100 }
  const one = watched(lock.withLock('name', () => endOne.opened, { ...options, minHoldSeconds: 60 }))
  await time.run(10)
  watched(lock.withLock('name', () => endTwo.opened, options))
  await time.run(10)
  await other.forceRelease('name', { by: 'ada' })
  expect((await other.acquire('name')).acquired).toBe(true)
  let renewals = 0
  fault.now = (method) => {
    if (method !== 'renew') return undefined
    renewals += 1
    return renewals === 1 ? { replyMs: 50 } : { fails: new StoreError('down') }
  }
  endOne.open()
  await time.run(1)
  endTwo.open()
  await time.run(20_000)
  expect(one.error).toMatchObject({ code: 'LEASE_LOST' })
})

it('a step of the wall clock does not answer a claim before its place is withdrawn', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, other, settings } = setUp(fault)
  await other.acquire('name', { timeoutSeconds: 1_000 })
  await lock.hold('ticks', { timeoutSeconds: 0.1 })
  fault.now = (method) => (method === 'release' ? { requestMs: 100 } : undefined)
  let answeredAtMs = 0
  void lock.acquire('name', { blockingTimeoutSeconds: 5.2 }).then(() => {
    answeredAtMs = time.nowMs
  })
  await time.run(5_201)
  settings.clock.stepWall(8)
  await time.run(400)
  expect(answeredAtMs).toBeGreaterThan(5_295)
})

it('a loss that a confirmation finds before a postponed release is reported once', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock, other } = setUp(fault, { reacquire: 'extend' })
  const ends: string[] = []
  for (const event of ['lost', 'released', 'releaseFailed'] as const) lock.on(event, () => void ends.push(event))
  const [endOne, endTwo] = [gate(), gate()]
  const options = { heartbeat: false, timeoutSeconds: 100 }
  const one = watched(lock.withLock('name', () => endOne.opened, { ...options, minHoldSeconds: 60 }))
  await time.run(10)
  watched(lock.withLock('name', () => endTwo.opened, options))
  await time.run(10)
  await other.forceRelease('name', { by: 'ada' })
  fault.now = (method) => (method === 'renew' ? { replyMs: 50 } : undefined)
  endOne.open()
  await time.run(1)
  endTwo.open()
  await time.run(20_000)
  expect(one.error).toMatchObject({ code: 'LEASE_LOST' })
  expect(ends).toEqual(['lost'])
})
