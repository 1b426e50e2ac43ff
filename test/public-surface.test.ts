import { expect, test } from 'vitest'
import { publicSurface, storedSurface, surfaceHint } from '../scripts/public-surface.mjs'
import { publicEntries } from '../scripts/support/entries.mjs'

test('the public surface is that of test/public-surface.txt', () => {
  expect(publicSurface(), surfaceHint).toBe(storedSurface())
})

test('the public surface has every entry of the package', () => {
  const listed = [...storedSurface().matchAll(/^entry (.+)$/gm)].map(([, name]) => name)
  expect(listed).toEqual(publicEntries().map(({ name }) => name))
  expect(listed).toContain('holdfast')
})

test('the public surface has the names and signatures that the design fixes', () => {
  const surface = storedSurface().replaceAll(/\s+/g, ' ')
  for (const fixed of [
    'acquire(lockName: string, options?: LockOptions): Promise<LockResult>',
    'release(lockName: string, options?: AnswerOptions): Promise<boolean>',
    'extend(lockName: string, seconds: number, options?: AnswerOptions): Promise<boolean>',
    'withLock<T>(lockName: string, fn: (lease: Lease) => Promise<T> | T, options?: LockOptions): Promise<T>',
    'hold(lockName: string, options?: LockOptions): Promise<Lease>',
    'releaseAll(): Promise<void>',
    'getDistributedLock(options?: DistributedLockOptions): DistributedLock',
    'interface Lease extends LockInfo, AsyncDisposable',
  ]) {
    expect(surface).toContain(fixed)
  }
})
