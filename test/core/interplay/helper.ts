import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, type DistributedLockOptions } from '../../../src/index.ts'
import { seededRandom, VirtualTime } from '../../../src/testing/virtual-clock.ts'

type Method = 'acquire' | 'renew' | 'release'
/** Undefined: as the store does. */
export type Fault = (method: Method, requests: readonly unknown[], at: number) => Fate | undefined
export interface Fate {
  /** Before the store sees it. */
  readonly requestMs?: number
  readonly replyMs?: number
  readonly fails?: Error
  readonly hangs?: 'request' | 'reply'
}

/** A memory driver whose calls are delayed, fail or hang, in virtual time. */
export function setUp(fault: { now: Fault | undefined }, options: Partial<DistributedLockOptions> = {}) {
  const time = new VirtualTime()
  const store = createMemoryStore(time.clock())
  const inner = memoryDriver({ store })
  const calls: { method: Method; atMs: number; requests: readonly unknown[] }[] = []
  const rest = (ms: number): Promise<void> => new Promise((resolve) => void time.in(ms, resolve))
  const through =
    (method: Method) =>
    async (...args: never[]): Promise<never> => {
      const requests = args[0] as unknown as readonly unknown[]
      calls.push({ method, atMs: time.nowMs, requests })
      const fate = fault.now?.(method, requests, calls.filter((call) => call.method === method).length) ?? {}
      if (fate.hangs === 'request') return new Promise(() => {})
      if (fate.requestMs) await rest(fate.requestMs)
      if (fate.fails) throw fate.fails
      const answer = await inner[method](...(args as unknown as [never, never]))
      if (fate.hangs === 'reply') return new Promise(() => {})
      if (fate.replyMs) await rest(fate.replyMs)
      return answer as never
    }
  const driver: Driver = { ...inner, acquire: through('acquire'), renew: through('renew'), release: through('release') }
  const settings = { clock: time.clock(), random: seededRandom(7) }
  const lock = new DistributedLock({ ...settings, driver, ...options })
  const other = new DistributedLock({ ...settings, driver: memoryDriver({ store }) })
  const leases = async (lockName: string) => (await inner.inspect({ lockName })).leases
  return { time, lock, other, calls, leases, driver, store, settings }
}

/** A promise that a test settles, and how it has settled. */
export function gate(): { readonly opened: Promise<void>; open(): void } {
  let open = (): void => {}
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return { opened, open: () => open() }
}

export function watched<T>(work: Promise<T>) {
  const seen: { state: 'pending' | 'resolved' | 'rejected'; value?: T; error?: unknown } = { state: 'pending' }
  work.then(
    (value) => Object.assign(seen, { state: 'resolved', value }),
    (error) => Object.assign(seen, { state: 'rejected', error }),
  )
  return seen
}
