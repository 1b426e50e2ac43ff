import { describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { type CloseOptions, DistributedLock, type Lease, LeaseLostError } from '../../../src/index.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'
import { gate } from '../../harness/gate.ts'

describe('how long close takes (virtual time)', () => {
  /** An instance with a function under a lease, on a store that stops answering on request. */
  async function serving(): Promise<Serving> {
    const time = new VirtualTime()
    const inner = memoryDriver({ store: createMemoryStore(time.clock()) })
    let isSilent = false
    const orNever =
      <Arguments extends readonly unknown[], Answer>(call: (...args: Arguments) => Promise<Answer>) =>
      (...args: Arguments): Promise<Answer> =>
        isSilent ? new Promise(() => {}) : call(...args)
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

  it('at most five seconds when the store does not answer and a function does not stop', async () => {
    const { close, fallSilent, ended, finish } = await serving()
    fallSilent()
    expect(await close()).toBe(5_000)
    finish.open()
    expect(await ended).toBe('lost')
  })

  it('drainSeconds and then timeoutSeconds', async () => {
    const { close, fallSilent } = await serving()
    fallSilent()
    expect(await close({ drainSeconds: 7, deadlineSeconds: 2 })).toBe(9_000)
  })

  it('a function has three fifths of timeoutSeconds to settle, and holds its lock until then', async () => {
    const { close, time, lease, leases, finish, ended } = await serving()
    time.in(2_999, () => {
      expect([lease.signal.aborted, lease.held]).toEqual([true, true])
      finish.open()
    })
    expect(await close()).toBe(2_999)
    expect(await ended).toBe('lost')
    expect(await leases()).toBe(0)
  })

  it('a function that does not settle loses its lock after that time', async () => {
    const { close, lease, leases } = await serving()
    expect(await close()).toBe(3_000)
    expect(lease.held).toBe(false)
    expect(await leases()).toBe(0)
  })

  it('a drain ends with the last running function, and aborts nothing', async () => {
    const { close, time, lease, finish, ended } = await serving()
    time.in(4_000, finish.open)
    expect(await close({ drainSeconds: 60 })).toBe(4_000)
    expect(lease.signal.aborted).toBe(false)
    expect(await ended).toBe('resolved')
  })

  it('a function that waits for close itself loses its lock when its time is over', async () => {
    const lock = new DistributedLock({ driver: memoryDriver() })
    await expect(lock.withLock('name', () => lock.close({ deadlineSeconds: 0.1 }))).rejects.toBeInstanceOf(
      LeaseLostError,
    )
  })

  it('closing from one function leaves the others their time to settle', async () => {
    const store = createMemoryStore()
    const [lock, rival] = [0, 1].map(() => new DistributedLock({ driver: memoryDriver({ store }) })) as [
      DistributedLock,
      DistributedLock,
    ]
    const begun = gate()
    const other = lock.withLock('other', async ({ signal }) => {
      begun.open()
      await new Promise((resolve) => signal.addEventListener('abort', resolve))
      return (await rival.acquire('other')).acquired
    })
    const seen = expect(other).rejects.toBeInstanceOf(LeaseLostError)
    await begun.opened
    let closing: Promise<void> | undefined
    const closer = lock.withLock('name', () => {
      closing = lock.close({ drainSeconds: 0.05 })
    })
    await Promise.allSettled([closer, other, closing])
    await seen
    await rival.close()
  })
})

describe('a function does not begin without its lock', () => {
  it('when everything was released at the moment of the grant', async () => {
    const lock = new DistributedLock({ driver: memoryDriver() })
    lock.on('acquired', () => void lock.releaseAll())
    let ran = false
    const job = lock.withLock('name', () => {
      ran = true
    })
    await expect(job).rejects.toBeInstanceOf(LeaseLostError)
    expect(ran).toBe(false)
    await lock.close()
  })

  it('when another function has blocked the process for longer than the lease', async () => {
    const lock = new DistributedLock({ driver: memoryDriver(), defaults: { timeoutSeconds: 0.5 } })
    const ran: string[] = []
    const take = (name: string) =>
      lock.withLock(name, () => {
        ran.push(name)
        const untilMs = performance.now() + 550
        while (performance.now() < untilMs);
      })
    const ends = await Promise.allSettled([take('x'), take('y')])
    expect(ran).toEqual(['x'])
    for (const end of ends) expect(end).toMatchObject({ reason: expect.any(LeaseLostError) })
    await lock.close()
  })
})

describe('of several functions under one lease, those that did not end it are notified', () => {
  it.each(['releaseAll', 'release'] as const)('by %s in one that entered it again beside another', async (how) => {
    const lock = new DistributedLock({ driver: memoryDriver() })
    const begun = gate()
    let isTold: boolean | undefined
    const job = lock.withLock('name', async () => {
      const sibling = lock.withLock('name', async ({ signal }) => {
        begun.open()
        await new Promise((resolve) => setTimeout(resolve, 50))
        isTold = signal.aborted
      })
      sibling.catch(() => undefined)
      await begun.opened
      await (how === 'releaseAll' ? lock.releaseAll() : lock.release('name'))
    })
    await expect(job).rejects.toBeInstanceOf(LeaseLostError)
    expect(isTold).toBe(true)
    await lock.close()
  })

  it('by releaseAll in one use of a lease that its instance has reacquired', async () => {
    const lock = new DistributedLock({ driver: memoryDriver(), reacquire: 'extend' })
    const begun = gate()
    const ended = gate()
    const other = lock.withLock('name', async ({ signal }) => {
      begun.open()
      await ended.opened
      return signal.aborted
    })
    const told = expect(other).rejects.toBeInstanceOf(LeaseLostError)
    await begun.opened
    await Promise.allSettled([lock.withLock('name', () => lock.releaseAll())])
    ended.open()
    await told
    await lock.close()
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
