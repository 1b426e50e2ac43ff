import { expect, it } from 'vitest'
import { type Fault, setUp } from './helper.ts'

it('failure 51: any number of extensions of one lease at once neither fails nor stops its heartbeat', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock } = setUp(fault)
  const lease = await lock.hold('name', { timeoutSeconds: 30 })
  fault.now = (method) => (method === 'renew' ? { replyMs: 20 } : undefined)
  const errors = new Map<string, number>()
  const count = (error: unknown): void => {
    const text = String(error)
    errors.set(text, (errors.get(text) ?? 0) + 1)
  }
  const work = Promise.all(Array.from({ length: 150_000 }, () => lease.extend(60).catch(count)))
  await time.run(60_000)
  await work
  expect([...errors]).toEqual([])
  await time.run(60_000)
  expect(lease.held).toBe(true)
}, 120_000)
