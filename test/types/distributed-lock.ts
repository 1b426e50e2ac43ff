import { DistributedLock, getDistributedLock, type Lease, type LockEvents } from 'holdfast'
import { memoryDriver } from 'holdfast/drivers/memory'
import type { Equal } from './equal.ts'

const lock = new DistributedLock({ driver: memoryDriver() })

export async function withLockInfersItsResult() {
  const fromPromise = await lock.withLock('a', async () => ({ pages: 12 }))
  const sameType: Equal<typeof fromPromise, { pages: number }> = true
  const fromValue = await lock.withLock('a', () => 'text' as const)
  const sameLiteral: Equal<typeof fromValue, 'text'> = true
  const nothing = await lock.withLock('a', async () => {})
  const isVoid: Equal<typeof nothing, void> = true
  // @ts-expect-error the result has the type of the function's result
  const wrong: number = await lock.withLock('a', async () => 'text')
  return [sameType, sameLiteral, isVoid, wrong]
}

export function withLockHandsOverTheLease() {
  return lock.withLock('a', (lease) => {
    const isLease: Equal<typeof lease, Lease> = true
    return isLease
  })
}

export async function leaseAndInstanceAreDisposable() {
  await using shared = getDistributedLock()
  await using lease = await shared.hold('a')
  const disposable: AsyncDisposable = lease
  // @ts-expect-error a release is asynchronous, and plain `using` would not await it
  using tooEarly = lease
  return [disposable, tooEarly]
}

export function leaseCannotBeTamperedWith(lease: Lease) {
  // @ts-expect-error `held` is read-only
  lease.held = true
  // @ts-expect-error `signal` is read-only
  lease.signal = new AbortController().signal
}

export function optionsAreChecked() {
  // @ts-expect-error times are in seconds
  void lock.acquire('a', { timeoutMs: 5 })
  // @ts-expect-error seconds are numbers
  void lock.acquire('a', { timeoutSeconds: '5' })
  // @ts-expect-error neither 'refuse' nor 'extend'
  new DistributedLock({ reacquire: 'maybe' })
}

export function eventsAreTyped() {
  lock.on('acquired', ({ fencingToken, waitedMs }) => fencingToken + waitedMs)
  const lost: (event: LockEvents['lost']) => Error = ({ error }) => error
  lock.on('lost', (event) => void lost(event))
  // @ts-expect-error no such event
  lock.on('gone', () => {})
  // @ts-expect-error a refusal has no fencing token
  lock.on('refused', ({ fencingToken }) => fencingToken)
}
