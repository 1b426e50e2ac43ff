import { setTimeout as sleep } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DeadlockError, DistributedLock, LeaseLostError, NotAcquiredError, ReadWriteLock } from '../../../src/index.ts'

describe('readers and writers of one process', () => {
  it('readers share the lock, and the writer waits for the last of them', async () => {
    await using lock = new ReadWriteLock({ driver: memoryDriver() })
    const readers = [await lock.holdRead('page'), await lock.holdRead('page')]
    const order: string[] = []
    const writer = lock.withWrite('page', () => order.push('written'), { blocking: true })
    for (const reader of readers) {
      await sleep(5) // so that a writer that does not wait would be noticed
      order.push('read')
      await reader.release()
    }
    await writer
    expect(order).toEqual(['read', 'read', 'written'])
  })

  it('contention is a value in acquire…, and an error in hold… and with…', async () => {
    await using lock = new ReadWriteLock({ driver: memoryDriver() })
    const atOnce = { blocking: false }
    await using _writer = await lock.holdWrite('page')
    expect(await lock.acquireRead('page', atOnce)).toMatchObject({
      acquired: false,
      holder: { holderId: lock.holderId },
    })
    await expect(lock.holdRead('page', atOnce)).rejects.toBeInstanceOf(NotAcquiredError)
    await expect(lock.withRead('page', () => 1, atOnce)).rejects.toBeInstanceOf(NotAcquiredError)
    await expect(lock.withWrite('page', () => 1, atOnce)).rejects.toBeInstanceOf(NotAcquiredError)
  })

  it('a reader whose lease is lost before its function ends gets a LeaseLostError', async () => {
    await using lock = new ReadWriteLock({ driver: memoryDriver() })
    const job = lock.withRead('page', () => sleep(150), { timeoutSeconds: 0.05, heartbeat: false, blocking: true })
    await expect(job).rejects.toBeInstanceOf(LeaseLostError)
  })
})

describe('re-entry', () => {
  it('an upgrade is rejected at once with a hint what to do; the reader goes on', async () => {
    await using lock = new ReadWriteLock({ driver: memoryDriver() })
    await lock.withRead('page', async (reader) => {
      const attempt = lock.withWrite('page', () => 'never', { blocking: true })
      await expect(attempt).rejects.toBeInstanceOf(DeadlockError)
      await expect(attempt).rejects.toThrow(/would wait for itself on "page"/)
      await expect(attempt).rejects.toMatchObject({
        cycle: [{ holderId: lock.holderId, lockName: 'page', heldBy: lock.holderId }],
      })
      expect(reader.held).toBe(true)
    })
  })

  it('a reader that has released its lease may write', async () => {
    await using lock = new ReadWriteLock({ driver: memoryDriver() })
    const written = await lock.withRead('page', async (reader) => {
      await reader.release()
      return lock.withWrite('page', () => 'written')
    })
    expect(written).toBe('written')
  })

  it('a writer inside a reader of another name is not an upgrade', async () => {
    await using lock = new ReadWriteLock({ driver: memoryDriver() })
    expect(await lock.withRead('page', () => lock.withWrite('other', () => 'written'))).toBe('written')
  })

  it('the end of an inner entry does not end the outer lease', async () => {
    const driver = memoryDriver()
    await using lock = new ReadWriteLock({ driver })
    await using other = new DistributedLock({ driver })
    await lock.withWrite('page', async (writer) => {
      await lock.withRead('page', () => {})
      expect(writer.held).toBe(true)
      expect((await other.acquire('page', { blocking: false })).acquired).toBe(false)
    })
    expect((await other.acquire('page', { blocking: false })).acquired).toBe(true)
  })
})
