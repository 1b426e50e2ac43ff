import { describe, expect, it } from 'vitest'
import { memoryDriver } from '../../src/drivers/memory.ts'
import { DistributedLock, LeaderElection, OnceOnly, ReadWriteLock, Semaphore } from '../../src/index.ts'
import { WebLocks } from '../../src/primitives/web-locks/web-locks.ts'

type Body = () => Promise<void>

/** Each primitive with a function that runs under its lease. */
const primitives: Record<string, (body: Body) => { close: DistributedLock['close']; run(): Promise<unknown> }> = {
  DistributedLock: (body) =>
    opened(new DistributedLock({ driver: memoryDriver() }), (lock) => lock.withLock('a', body)),
  Semaphore: (body) =>
    opened(new Semaphore({ driver: memoryDriver(), limit: 2 }), (each) => each.withPermits('a', body)),
  ReadWriteLock: (body) => opened(new ReadWriteLock({ driver: memoryDriver() }), (lock) => lock.withWrite('a', body)),
  LeaderElection: (body) => opened(new LeaderElection({ driver: memoryDriver(), name: 'a' }), (each) => each.run(body)),
  OnceOnly: (body) =>
    opened(new OnceOnly({ driver: memoryDriver() }), (jobs) => jobs.once('a', body, { forSeconds: 60 })),
  WebLocks: (body) => opened(new WebLocks({ driver: memoryDriver() }), ({ locks }) => locks.request('a', body)),
}

function opened<P extends { close: DistributedLock['close'] }>(primitive: P, run: (primitive: P) => Promise<unknown>) {
  return { close: (options?: object) => primitive.close(options), run: () => run(primitive) }
}

describe.each(Object.entries(primitives))('%s', (_, open) => {
  it.each([
    ['cuts a drain short', { drainSeconds: 3_600 }, { drainSeconds: 0, deadlineSeconds: 0.1 }],
    ['shortens the time after it', { deadlineSeconds: 3_600 }, { deadlineSeconds: 0.1 }],
  ])('a second, more urgent close %s, and a less urgent one changes nothing', async (_, first, second) => {
    let begun = (): void => {}
    const running = new Promise<void>((resolve) => {
      begun = resolve
    })
    let end = (): void => {}
    const { run, close } = open(() => {
      begun()
      return new Promise<void>((resolve) => {
        end = resolve
      })
    })
    const work = run().catch(() => undefined)
    await running
    const closes = [close(first), close(second), close({ drainSeconds: 3_600, deadlineSeconds: 3_600 })]
    await Promise.all(closes)
    end()
    await work
    expect(closes.length).toBe(3)
  })
})
