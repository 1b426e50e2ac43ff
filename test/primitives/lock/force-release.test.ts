import { describe, expect, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, ReadWriteLock } from '../../../src/index.ts'

/** Runs something once, after the first inspection of a forced release. */
function between(driver: Driver, step: () => Promise<unknown>): Driver {
  let done = false
  return {
    ...driver,
    async inspect(query) {
      const page = await driver.inspect(query)
      if (!done) {
        done = true
        await step()
      }
      return page
    },
  }
}

describe('a forced release', () => {
  const BY = { by: 'operator' }

  it('ends the held lease, and returns it', async () => {
    await using lock = new DistributedLock({ driver: memoryDriver() })
    const lease = await lock.hold('name')
    const ended = await lock.forceRelease('name', BY)
    expect(ended.map(({ fencingToken }) => fencingToken)).toEqual([lease.fencingToken])
    expect(lease.held).toBe(false)
  })

  it('does not end a holder that came after its inspection', async () => {
    const store = createMemoryStore()
    const driver = memoryDriver({ store })
    await using holder = new DistributedLock({ driver })
    const old = await holder.hold('name')
    let next: Awaited<ReturnType<DistributedLock['hold']>> | undefined
    const change = async () => {
      await old.release()
      next = await holder.hold('name')
    }
    await using operator = new DistributedLock({ driver: between(memoryDriver({ store }), change) })
    expect(await operator.forceRelease('name', BY)).toEqual([])
    expect(await next?.extend(30)).toBe(true)
    expect(await next?.release()).toBe(true)
  })

  it('ends a reader that joined the inspected ones, and returns it', async () => {
    const store = createMemoryStore()
    await using pages = new ReadWriteLock({ driver: memoryDriver({ store }) })
    const readers = [await pages.holdRead('page')]
    const join = async () => {
      readers.push(await pages.holdRead('page'))
    }
    await using operator = new DistributedLock({ driver: between(memoryDriver({ store }), join) })
    const ended = await operator.forceRelease('page', BY)
    expect(ended.map(({ fencingToken }) => fencingToken).sort()).toEqual(
      readers.map(({ fencingToken }) => fencingToken).sort(),
    )
    expect(await Promise.all(readers.map((reader) => reader.extend(30)))).toEqual([false, false])
  })
})
