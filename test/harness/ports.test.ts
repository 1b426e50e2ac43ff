import { describe, expect, test } from 'vitest'
import { freePort } from './ports.ts'

describe('free ports', () => {
  test('a reserved port is not given to another process', async () => {
    // A second copy of the module knows nothing of the first, like another process.
    const copy = `${new URL('./ports.ts', import.meta.url).href}?copy`
    const other: typeof import('./ports.ts') = await import(/* @vite-ignore */ copy)
    const handedOut = await Promise.all(Array.from({ length: 600 }, (_, at) => (at % 2 ? freePort : other.freePort)()))
    expect(new Set(handedOut).size).toBe(600)
  })
})
