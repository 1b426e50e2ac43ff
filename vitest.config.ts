import { availableParallelism } from 'node:os'
import { defineConfig } from 'vitest/config'
import { LongestFirst } from './test/harness/longest-first.ts'

/** `ioredis=folder` replaces the installed client with another one or another version (scripts/matrix/redis.mjs). */
const [replaced, folder] = process.env['HOLDFAST_TEST_CLIENT']?.split('=') ?? []

export default defineConfig({
  ...(replaced && folder && { resolve: { alias: [{ find: new RegExp(`^${replaced}$`), replacement: folder }] } }),
  test: {
    include: ['test/**/*.test.ts', ...(process.env['HOLDFAST_MATRIX_TOOL'] ? ['test/tools/*.matrix.ts'] : [])],
    globalSetup: ['test/harness/global-setup.ts'],
    reporters: ['dot'],
    // The tests wait more than they compute: with three files at a time, two cores are idle for a third of the time.
    maxWorkers: Math.max(4, availableParallelism()),
    sequence: { sequencer: LongestFirst },
    testTimeout: 60_000,
    hookTimeout: 120_000,
  },
})
