import { describe, expect, it } from 'vitest'
import type { Driver } from '../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../src/drivers/memory.ts'
import { type CloseOptions, DistributedLock, type Lease, LeaseLostError } from '../../src/index.ts'
import { seededRandom, VirtualTime } from '../../src/testing/virtual-clock.ts'
import { gate } from '../support/gate.ts'

describe('how long close takes, in virtual time', () => {
  /** An instance with a function under a lease, on a store that falls silent when told to. */
  async function serving(): Promise<Serving> {
    const time = new VirtualTime()
    const inner = memoryDriver({ store: createMemoryStore(time.clock()) })
    let isSilent = false
    const orNever =
      <Request, Answer>(call: (list: readonly Request[]) => Promise<Answer>) =>
      (list: readonly Request[]): Promise<Answer> =>
        isSilent ? new Promise(() => {}) : call(list)
    const driver: Driver = {
      ...inner,
      acquire: orNever(inner.acquire),
      renew: orNever(inner.renew),
      release: orNever(inner.release),
    }
    const lock = new DistributedLock({ driver, clock: time.clock(), random: seededRandom(1) })
    const begun = gate()
    const finish = gate()
    let lease: Lease | undefined
    const job = lock.withLock('name', async (held) => {
      lease = held
      begun.open()
      await finish.opened
    })
    const ended = job.then(
      () => 'resolved',
      (error: unknown) => (error instanceof LeaseLostError ? 'lost' : `${error}`),
    )
    await time.runUntil(() => lease !== undefined)
    const leases = async () => (await inner.inspect({})).leases.length
    const close = async (options?: CloseOptions) => {
      const startedMs = time.nowMs
      let tookMs: number | undefined
      void lock.close(options).then(() => {
        tookMs = time.nowMs - startedMs
      })
      await time.runUntil(() => tookMs !== undefined)
      return tookMs
    }
    const fallSilent = () => {
      isSilent = true
    }
    return { time, lease: lease as unknown as Lease, ended, finish, close, leases, fallSilent }
  }

  it('five seconds at the most when the store is silent and a function does not stop', async () => {
    const { close, fallSilent, ended, finish } = await serving()
    fallSilent()
    expect(await close()).toBe(5_000)
    finish.open()
    expect(await ended).toBe('lost')
  })

  it('as long as was said, and the drain comes before that', async () => {
    const { close, fallSilent } = await serving()
    fallSilent()
    expect(await close({ drainSeconds: 7, timeoutSeconds: 2 })).toBe(9_000)
  })

  it('a function has three fifths of it to settle, and holds its lock until then', async () => {
    const { close, time, lease, leases, finish, ended } = await serving()
    time.in(2_999, () => {
      expect([lease.signal.aborted, lease.held]).toEqual([true, true])
      finish.open()
    })
    expect(await close()).toBe(2_999)
    expect(await ended).toBe('lost')
    expect(await leases()).toBe(0)
  })

  it('a function that does not settle loses its lock after that', async () => {
    const { close, lease, leases } = await serving()
    expect(await close()).toBe(3_000)
    expect(lease.held).toBe(false)
    expect(await leases()).toBe(0)
  })

  it('a drain ends with the last of the work, and aborts nothing', async () => {
    const { close, time, lease, finish, ended } = await serving()
    time.in(4_000, finish.open)
    expect(await close({ drainSeconds: 60 })).toBe(4_000)
    expect(lease.signal.aborted).toBe(false)
    expect(await ended).toBe('resolved')
  })

  it('closing by the function itself does not wait for the function', async () => {
    const lock = new DistributedLock({ driver: memoryDriver() })
    await expect(lock.withLock('name', () => lock.close())).rejects.toBeInstanceOf(LeaseLostError)
  })
})

interface Serving {
  readonly time: VirtualTime
  readonly lease: Lease
  readonly ended: Promise<string>
  readonly finish: ReturnType<typeof gate>
  close(options?: CloseOptions): Promise<number | undefined>
  leases(): Promise<number>
  fallSilent(): void
}
