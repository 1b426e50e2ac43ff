import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    reporters: ['dot'],
    testTimeout: 20_000,
    hookTimeout: 120_000,
  },
})
