// @ts-check
// The simulation, without a test runner: the same seeds each time, until one breaks a rule. It bundles the sources,
// which costs a tenth of a build.
import { pathToFileURL } from 'node:url'
import { build } from 'esbuild'

const SEEDS = 400

const outfile = '.cache/simulation.mjs'
await build({
  stdin: {
    contents: `
      export { simulate } from './test/simulation/simulate.ts'
      export { createMemoryStore, memoryDriver } from './src/drivers/memory.ts'`,
    resolveDir: process.cwd(),
  },
  outfile,
  bundle: true,
  platform: 'node',
  format: 'esm',
  target: 'node20',
  logLevel: 'error',
})
const { simulate, createMemoryStore, memoryDriver } = await import(pathToFileURL(outfile).href)
/** @param {unknown} clock */
const openStore = (clock) => memoryDriver({ store: createMemoryStore(clock) })

for (let seed = 1; seed <= SEEDS; seed += 1) {
  const { violations } = await simulate(seed, { openStore })
  if (violations.length === 0) continue
  process.stdout.write(`seed ${seed}: ${JSON.stringify(violations[0])}\n`)
  process.exit(1)
}
process.exit(0)
