import { availableParallelism } from 'node:os'
import { defineConfig } from 'vitest/config'
import { LongestFirst } from './test/harness/longest-first.ts'

/** `ioredis=folder`: another client, or another version, stands in for the installed one (scripts/matrix/redis.mjs). */
const [replaced, folder] = process.env['HOLDFAST_TEST_CLIENT']?.split('=') ?? []

export default defineConfig({
  ...(replaced && folder && { resolve: { alias: [{ find: new RegExp(`^${replaced}$`), replacement: folder }] } }),
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/harness/global-setup.ts'],
    reporters: ['dot'],
    // The tests wait far more than they compute: on two cores two files at a time leave more than a third of them idle.
    maxWorkers: Math.max(3, availableParallelism()),
    sequence: { sequencer: LongestFirst },
    testTimeout: 60_000,
    hookTimeout: 120_000,
  },
})
