import { once } from 'node:events'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  AbortedError,
  DistributedLock,
  LeaderElection,
  type LockOptions,
  OnceOnly,
  Semaphore,
  StoreError,
} from '../../../src/index.ts'
import { rejectionOf } from '../../harness/rejection.ts'

describe('the first use of a store that does not answer', () => {
  const sockets = new Set<Socket>()
  let server: Server
  let address = ''

  beforeAll(async () => {
    server = createServer((socket) => sockets.add(socket.on('error', () => undefined))).listen(0, '127.0.0.1')
    await once(server, 'listening')
    address = `127.0.0.1:${(server.address() as AddressInfo).port}`
  })
  afterAll(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })

  const waits: [string, LockOptions][] = [
    ['the waiting time', { blockingTimeoutSeconds: 0.3 }],
    ['a signal', { blockingTimeoutSeconds: 60, signal: AbortSignal.timeout(300) }],
  ]

  it.each(['redis+cluster', 'redis', 'postgres'])(
    'on %s ends with the waiting time, and with a signal',
    async (scheme) => {
      const url = `${scheme}://${address}${scheme === 'postgres' ? '/db' : ''}`
      for (const [bound, options] of waits) {
        const limit = bound === 'a signal' ? { ...options, signal: AbortSignal.timeout(300) } : options
        const instances = [
          (lock = new DistributedLock({ url })) => [lock, () => lock.acquire('name', limit)] as const,
          (lock = new DistributedLock({ url })) => [lock, () => lock.withLock('name', () => undefined, limit)] as const,
          (lock = new DistributedLock({ url })) =>
            [lock, () => lock.withLocks(['a', 'b'], () => undefined, limit)] as const,
          (lock = new Semaphore({ url, limit: 2 })) => [lock, () => lock.acquire('name', limit)] as const,
          (jobs = new OnceOnly({ url })) =>
            [jobs, () => jobs.once('job', () => 1, { forSeconds: 60, ...limit })] as const,
          (election = new LeaderElection({ url, name: 'role' })) => [election, () => election.campaign(limit)] as const,
        ].map((make) => make())
        const startedMs = performance.now()
        await Promise.all(
          instances.map(async ([instance, call]) => {
            const error = await rejectionOf(call)
            expect(error).toBeInstanceOf(bound === 'a signal' ? AbortedError : StoreError)
            // Opening alone takes 5 s and more.
            expect(performance.now() - startedMs).toBeLessThan(2_500)
            void instance.close({ deadlineSeconds: 0.1 })
          }),
        )
      }
    },
  )
})
