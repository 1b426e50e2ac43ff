// @ts-check
// Runs the chaos harness: see README.md.
//
//   node chaos/run.mjs --driver redlock --seconds 60 --seed 7
import { runCompiled } from './compiled.mjs'

await runCompiled('chaos/tsconfig.json', 'chaos/main.js')
