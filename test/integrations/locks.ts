import { afterEach, inject } from 'vitest'
import { DistributedLock } from '../../src/index.ts'

const [redis = ''] = inject('servers').redis ?? []

/** What to end after the test, the last one first. */
export const ending: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ending.splice(0).reverse()) await end()
})

/** A lock that is closed after the test. */
export function lockOn(store = redis): DistributedLock {
  const lock = new DistributedLock({ url: store })
  ending.push(() => lock.close({ deadlineSeconds: 0.1 }))
  return lock
}
