import { afterAll, beforeAll, expect, it } from 'vitest'
// The built package: a worker thread on Node 20 cannot load TypeScript.
import { DistributedLock } from '../../../dist/index.js'
import { openRemoteMemory, serveInThread } from '../../harness/remote-memory.mjs'
import { type Fault, gate, setUp, watched } from './helper.ts'

let server: Awaited<ReturnType<typeof serveInThread>>
beforeAll(async () => {
  server = await serveInThread()
})
afterAll(() => server.stop())

it('uses that ended while the lease was held are not told of a loss because the last one hands it over', async () => {
  const fault: { now: Fault | undefined } = { now: undefined }
  const { time, lock } = setUp(fault, { reacquire: 'extend' })
  const end = gate()
  const one = watched(lock.withLock('name', () => end.opened))
  await time.run(10)
  const two = watched(lock.withLock('name', () => end.opened))
  await time.run(10)
  const last = await lock.hold('name')
  fault.now = (method) => (method === 'renew' ? { replyMs: 50 } : undefined)
  end.open()
  await time.run(1)
  const text = watched(last.serialize())
  await time.run(1_000)
  expect([text.state, one.state, two.state]).toEqual(['resolved', 'resolved', 'resolved'])
})

it('the same with a heartbeat thread', async () => {
  const driver = await openRemoteMemory(server.port)
  const lock = new DistributedLock({ driver, heartbeatThread: true, reacquire: 'extend' })
  const end = gate()
  const work = watched(lock.withLock('name', () => end.opened))
  while ((await lock.inspect('name')).leases.length === 0) await lock.ping()
  const last = await lock.hold('name')
  end.open()
  // The function has ended, and its confirmation is on its way.
  for (let turn = 0; turn < 6; turn += 1) await Promise.resolve()
  const text = await last.serialize()
  await lock.restore(text).then((lease) => lease.release())
  await lock.close()
  await driver.close()
  expect(work.error).toBeUndefined()
})
